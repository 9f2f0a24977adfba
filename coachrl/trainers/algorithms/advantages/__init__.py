"""The parts that algorithms are made of: rewards, returns, baselines by groups, and what every token gets."""
