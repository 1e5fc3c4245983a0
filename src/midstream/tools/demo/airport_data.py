"""Owns `python -m midstream.tools.demo.airport_data`: builds the departures anew. Takes no flags."""

import time

from midstream.tools.demo import database


def main() -> None:
    path = database.database_path()
    started = time.perf_counter()
    database.build(path)
    seconds = time.perf_counter() - started
    [count] = database.read("SELECT count(*) FROM departures", {})[0]
    print(f"path    {path}")
    print(f"rows    {count}")
    print(f"size    {path.stat().st_size / 1e6:.1f} MB")
    print(f"built   {seconds:.1f} s")


if __name__ == "__main__":
    main()
