"""How does a program of extras print its results?"""

from anyorder.machine.files import write_json


class Table:
    """Rows that are printed as they come, and written to config.out, as the next one takes minutes.

    columns  {what a row says: (title, format)}; the first is the name of a row"""

    def __init__(self, title, columns, config):
        self.columns = columns
        self.out = config.get('out')
        self.result = {'config': config, 'title': title, 'results': []}
        print(title)
        self.print([title for title, _ in columns.values()])

    def print(self, cells):
        name, *others = cells
        print(f'{name:<24}' + ''.join(f'{cell:>10}' for cell in others), flush=True)

    def add(self, row):
        cells = []
        for what, (_, form) in self.columns.items():
            value = row.get(what)
            cells.append('' if value is None else format(value, form))
        self.print(cells)
        self.result['results'].append(row)
        if self.out:
            write_json(self.out, self.result)
