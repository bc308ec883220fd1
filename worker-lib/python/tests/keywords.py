"""The settings of a rank as keyword arguments: what is refused, and that the others arrive."""

from pathlib import Path

from switchml import Communicator, Error, Settings

for settings, said in (
    ({"deadline": -1}, "deadline is -1 s; it must be 0.1 s or more"),
    ({"timeout": 0.05}, "timeout is 0.05 s; it must be 0.1 s or more"),
    ({"world_size": 1025}, "world_size is 1025; 1 to 1024 are allowed"),
    ({"data_threads": 9}, "data_threads is 9; 1 to 8 are allowed"),
    ({"weights": [2, 0]}, "weights is [2, 0]; give numbers of 1 or more, with commas between them"),
    ({"tls_ca": Path("ca.pem"), "tls_fingerprint": "sha256:0"}, "TLS "),
):
    try:
        Communicator(**settings)
    except Error as error:
        assert str(error).startswith(said), error
    else:
        raise AssertionError(f"{settings} is taken")
for settings in ({"frobnicate": 1}, {"rank": "0"}, {"local_sums": 2}, {"weights": 2}):
    try:
        Communicator(**settings)
    except TypeError:
        continue
    raise AssertionError(f"{settings} is taken")

# One of each form; None is as good as not given.
settings: Settings = {
    "job": "by keyword",
    "data_threads": 1,
    "deadline": 30,
    "join_timeout": 60.0,
    "weights": [3],
    "local_sums": False,
    "tls_ca": None,
}
with Communicator(**settings) as communicator:
    info = communicator.info
    assert info["job"] == "by keyword" and info["data_threads"] == 1, info
    assert [each["weight"] for each in info["aggregators"]] == [3], info
print("all keywords are right")
