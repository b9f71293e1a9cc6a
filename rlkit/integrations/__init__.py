"""Parts of rlkit inside other people's trainers."""
