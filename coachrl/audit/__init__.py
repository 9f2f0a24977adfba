"""Is this coach fair, is it right, is it being gamed? Statistics on scored actions."""
