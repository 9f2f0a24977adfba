"""The command line with Ray's logical GPUs: `python run_cli.py FOLDER_FOR_RAY GPUS train …`."""

import sys

import openrlhf_cpu

if __name__ == "__main__":
    folder, gpus, *arguments = sys.argv[1:]
    openrlhf_cpu.start_ray(folder, int(gpus))
    sys.argv = ["coachrl", *arguments]
    from coachrl.cli import main

    main()
