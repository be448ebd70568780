"""A long answer with every kind of Markdown, and a check of how it is shown."""

import re
from dataclasses import replace

from screen import Screen

from dflash_mlx.types import Block

DOCUMENT = """# Heading 01

A paragraph with **bold**, *stress*, `code`, a [link](https://example.com/page) and ![art](a.png)
and a line of its own. It is long, so that it takes more than one row in every window there is.

Heading 02 is set
=================

- a bullet
- another one that is long enough to be broken in a narrow window, and then some more of it
  - nested
    - deeper

      with a paragraph
- a third

1. step 01
1. step 02
1. step 03
1. step 04
1. step 05
1. step 06
1. step 07
1. step 08
1. step 09
1. step 10
1. step 11
1. step 12

## Heading 03

```python
class Heading04:
    \"\"\"Not a
    heading.\"\"\"

    def method(self, argument: int = 4) -> str:
        return f"{argument} and a line of code that no window is wide enough for, by far" * argument


print(Heading04().method())
```

### Heading 05

| Name | Number | 名字 |
|:-----|-------:|:----:|
| tea  |      1 | 茶 |
| `a|b` | 20,000 | 咖啡 |

> quoted text that goes on until it has to be broken
>
> - and a list in it

```sh
for i in 1 2 3; do echo "$i"; done
```

---

#### Heading 06

<details>
<summary>HTML</summary>
</details>

宽字符会占用两个单元格 所以换行的地方和英文不一样。表情符号也是这样 😀 🎉 🚀。
宽字符会占用两个单元格 所以换行的地方不一样。

\\[
E = mc^2
- \\frac{a_1}{b_2}
\\]

Hard\\
breaks  
here, and $x_1 * y_2$.

##### Heading 07

- item with code

  ```js
  /* a
   * comment */
  const a = 1
  ```

- last

###### Heading 08

```text
unclosed code
  until the end
"""
HEADINGS = [f"Heading {n:02}" for n in (1, 2, 3, 5, 6, 7, 8)] + ["class Heading04"]
STRAY = re.compile(r"tok/s|reading the prompt|[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏…]")


def blocks_of(text, size, *, thinking=""):
    for source, name in ((thinking, "thinking"), (text, "text")):
        for start in range(0, len(source), size):
            block = Block((1, 2), drafted=2, accepted=1)
            yield replace(block, **{name: source[start : start + size]})


def faults(screen):
    text = screen.text() if isinstance(screen, Screen) else screen
    text = re.sub(r"\s+", " ", text)
    counts = {heading: text.count(heading) for heading in HEADINGS}
    return {heading: n for heading, n in counts.items() if n != 1} | {
        found: "stray" for found in STRAY.findall(text)
    }
