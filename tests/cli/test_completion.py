"""What a shell offers while a command is typed."""

import pytest
from command_line import coachrl


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("coachrl tr", ["train"]),
        ("coachrl train --pip", ["--pipeline"]),
        ("coachrl train --pipeline dsb", ["dsbench"]),
        ("coachrl train --config one_gpu", ["one_gpu", "one_gpu_team"]),
        ("coachrl eval -c my_own.y", []),  # the shell's own files follow
        ("coachrl doctor --backend v", ["vllm"]),
    ],
)
def test_a_shell_completes_commands_options_and_names(tmp_path, typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_COACHRL_COMPLETE": "complete_bash"}
    done = coachrl(cwd=tmp_path, **words)
    assert (done.stdout.split(), done.stderr) == (offered, "")
