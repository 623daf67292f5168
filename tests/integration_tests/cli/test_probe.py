import pytest, json, os, signal, subprocess, sys, time
from tests.integration_tests.cli.support import ANN, BOB, Shell
from tests.loopback import replies
def w(*a):
    with open("/tmp/d/out","a") as f: print(*a, file=f)
def p(r): w(r.status, r.out[-900:], r.err[-700:])

def test_forget(shell: Shell):
    w(shell.align(ANN, BOB).status)
    for a in (["0"*32,"--purge","-y"], ["--author","nobody","--purge","-y"], ["--author","nobody","-y"]):
        w("FORGET", a); p(shell.memory("forget", *a))
    ids=[e["id"] for e in shell.memory("list","--json").document["episodes"]]
    w("UPPER"); p(shell.memory("forget", ids[0].upper(), "--purge", "-y"))
    w(len(shell.memory("list","--json").document["episodes"]))

def test_align_fail(shell: Shell):
    w("ALIGNFAIL")
    shell.server.script = None if False else shell.server.script
    from tests.loopback.server import LoopbackServer
    from tests.loopback import Rule
    shell.server.rules=[Rule(lambda chat: True, reply=replies.refusal("no"))]
    p(shell.align(ANN, BOB))
    p(shell.judge(ANN, BOB))

def test_keep(shell):
    w("KEEP")
    shell.settings(judge={"keep_judgments": True})
    p(shell.judge({"inputs":"a","outputs":"b"}))
