"""Say which rooms there are."""

from anyorder import extras

if __name__ == '__main__':
    print(extras.__doc__)
