"""`shinar completion`: a shell's completion script, generated from the argparse tree. Needs no package."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

EXAMPLES = """examples:
  source <(shinar completion bash)                                     # bash, this session
  shinar completion bash > ~/.local/share/bash-completion/completions/shinar
  shinar completion zsh > "${fpath[1]}/_shinar"
  shinar completion fish > ~/.config/fish/completions/shinar.fish
"""

#: Commands a user typed so far -> the words that may follow.
Words = dict[tuple[str, ...], list[str]]

_BASH: Final = """# bash completion for shinar; made by `shinar completion bash`
_shinar() {
    local current="${COMP_WORDS[COMP_CWORD]}" path="" word candidate
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        candidate="${path:+$path }$word"
        case "$candidate" in
            %(paths)s) path="$candidate" ;;
        esac
    done
    local words=""
    case "$path" in
%(cases)s
    esac
    if [[ "$current" == -* || -z "$path" ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current"; compgen -f -- "$current")
    fi
}
complete -o filenames -F _shinar shinar
"""

_ZSH: Final = """#compdef shinar
# zsh completion for shinar; made by `shinar completion zsh`
_shinar() {
    local path_so_far="" word candidate
    for word in "${(@)words[2,CURRENT-1]}"; do
        candidate="${path_so_far:+$path_so_far }$word"
        case "$candidate" in
            (%(paths)s) path_so_far="$candidate" ;;
        esac
    done
    local -a found
    case "$path_so_far" in
%(cases)s
    esac
    compadd -- $found
    _files
}
if [ "$funcstack[1]" = "_shinar" ]; then _shinar "$@"; else compdef _shinar shinar; fi
"""

_FISH: Final = """# fish completion for shinar; made by `shinar completion fish`
function __shinar_path
    set -l path ""
    for word in (commandline -opc)[2..-1]
        set -l candidate (string trim -- "$path $word")
        if contains -- "$candidate" %(paths)s
            set path "$candidate"
        end
    end
    test "$path" = "$argv"
end
%(cases)s
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete for")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    words = dict(_words(args.whole_parser(), ()))
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words), end="")
    return 0


def _words(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    flags: list[str] = []
    commands: dict[str, argparse.ArgumentParser] = {}
    choices: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands.update(action.choices)
        elif action.option_strings:
            flags += [flag for flag in action.option_strings if flag.startswith("--")]
        elif action.choices:
            choices += [str(choice) for choice in action.choices]
    yield path, [*commands, *choices, *flags]
    for name, below in commands.items():
        yield from _words(below, (*path, name))


def _bash(words: Words) -> str:
    paths = "|".join(f'"{" ".join(path)}"' for path in words if path)
    cases = [f'        "{" ".join(path)}") words="{" ".join(found)}" ;;' for path, found in words.items()]
    return _BASH % {"paths": paths, "cases": "\n".join(cases)}


def _zsh(words: Words) -> str:
    paths = "|".join(f'"{" ".join(path)}"' for path in words if path)
    cases = [f'        ("{" ".join(path)}") found=({" ".join(found)}) ;;' for path, found in words.items()]
    return _ZSH % {"paths": paths, "cases": "\n".join(cases)}


def _fish(words: Words) -> str:
    paths = " ".join(f'"{" ".join(path)}"' for path in words if path)
    lines = []
    for path, found in words.items():
        typed = " ".join(path)
        plain = [word for word in found if not word.startswith("--")]
        if plain:
            lines.append(f"complete -c shinar -f -n '__shinar_path \"{typed}\"' -a '{' '.join(plain)}'")
        lines += [
            f"complete -c shinar -n '__shinar_path \"{typed}\"' -l {word[2:]}"
            for word in found
            if word.startswith("--")
        ]
    return _FISH % {"paths": paths, "cases": "\n".join(lines)}
