import click


@click.command("simulate")
def command() -> None:
    """later"""
