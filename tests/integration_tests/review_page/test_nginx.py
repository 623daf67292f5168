"""The documented configuration with a real nginx."""

import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration_tests.agent_server.support import free_port
from tests.integration_tests.cli.conftest import server, shell
from tests.integration_tests.cli.support import Shell
from tests.integration_tests.cli.test_cli_review import CASE, waiting

__all__ = ["server", "shell", "waiting"]

NGINX = shutil.which("nginx") or ""
pytestmark = pytest.mark.skipif(not NGINX, reason="needs nginx: apt install nginx-light")
PAGE = Path(__file__).parents[3] / "docs" / "review-page.md"
MAIN = """\
daemon off; master_process off; pid {0}/pid; error_log {0}/error.log; events {{}}
http {{ access_log off; client_body_temp_path {0}/1; proxy_temp_path {0}/2;
fastcgi_temp_path {0}/3; uwsgi_temp_path {0}/4; scgi_temp_path {0}/5;
{1}
}}"""


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def proxied(waiting: Shell, tmp_path: Path) -> Iterator[str]:
    """The page behind nginx, for ann and bob."""
    port, page_port = free_port(), free_port()
    options = ["--user-header", "X-Forwarded-User", "--port", str(page_port)]
    page = waiting.process("review", "-c", "tone.yaml", *options)
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    run(*make, "-keyout", str(key), "-out", str(certificate))
    hashes = [f"{name}:{run('openssl', 'passwd', '-apr1', 'secret')}\n" for name in ("ann", "bob")]
    users = waiting.write("users", "".join(hashes))
    [block] = re.findall(r"```nginx[^\n]*\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    changes = {
        "443": f"127.0.0.1:{port}",
        "reviews.example.com": "127.0.0.1",
        "/etc/ssl/reviews.pem": str(certificate),
        "/etc/ssl/reviews.key": str(key),
        "/etc/nginx/reviewers": str(users),
        "127.0.0.1:8765": f"127.0.0.1:{page_port}",
    }
    for documented, used in changes.items():
        assert documented in block
        block = block.replace(documented, used)
    config = waiting.write("nginx.conf", MAIN.format(tmp_path, block))
    with subprocess.Popen([NGINX, "-c", str(config), "-p", str(tmp_path)]) as nginx:
        assert page.stderr is not None
        assert any("/review" in line for line in page.stderr)
        yield f"https://127.0.0.1:{port}"
        nginx.terminate()
        page.terminate()
        page.communicate()


def test_nginx_authenticates_experts(waiting: Shell, proxied: str) -> None:
    trust = ssl.create_default_context(cafile=str(waiting.folder / "certificate"))
    trust.check_hostname = False
    forged = {"X-Forwarded-User": "bob"}
    options = {"base_url": proxied, "verify": trust, "follow_redirects": True, "trust_env": False}
    with httpx.Client(**options, headers=forged) as client:  # type: ignore[arg-type] # typed each
        for _ in range(50):
            try:
                nobody = client.get("/review")
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        assert nobody.status_code == 401
        client.auth = ("ann", "secret")
        page = client.get("/review/next")
        assert CASE["outputs"] in page.text
        assert (">ann<" in page.text, "bob" in page.text) == (True, False)
        assert "Secure" in page.headers["set-cookie"]
        [token] = set(re.findall(r'name="token" value="([^"]+)"', page.text))
        form = {"token": token, "value": "false"}
        sent = client.post(f"{page.url.path}/answer", data=form, headers={"origin": proxied})
        assert "Your answer is stored." in sent.text
    _, episodes, _ = waiting.opened()
    assert [(episode.author, episode.value) for episode in episodes] == [("ann", False)]
