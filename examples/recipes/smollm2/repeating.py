"""Prompts whose answers repeat text from the prompt (edits, quotations), and other prompts."""

TEXTS = {
    "letter": """Dear Mrs Alder,

thank you for your letter of 3 March. We have looked at the two windows in the north room, \
and both frames must be replaced before the winter. Our carpenter can come on Tuesday, 14 \
March, between eight and ten in the morning. Please clear the window sills and take down the \
curtains before he arrives. The work takes about five hours, and he will clean up after \
himself.

Yours sincerely,
Peter Holm""",
    "minutes": """Minutes of the garden club, 9 May.
Present: Anna, Boris, Chen, Dora.
1. The greenhouse needs a new door. Boris asks two firms for a price.
2. The plant sale is on 2 June, from nine to noon. Chen prints forty posters.
3. The water pump is loud again. Dora calls the electrician.
4. The next meeting is on 13 June at seven in the library.""",
    "recipe": """Lentil soup for four.
Chop two onions, three carrots and one stick of celery. Fry them in olive oil for ten \
minutes on a low fire. Add 250 grams of brown lentils, one bay leaf and a litre and a half \
of water. Boil it gently for forty minutes. Add salt, pepper and the juice of half a lemon. \
Serve it with bread.""",
    "function": '''def average_temperature(readings, minimum=-40, maximum=60):
    """Average of the readings that a thermometer can have measured."""
    total = 0.0
    count = 0
    for reading in readings:
        if reading < minimum or reading > maximum:
            continue
        total += reading
        count += 1
    if count == 0:
        return None
    return total / count''',
    "class": '''class Queue:
    """People who wait, the first one first."""

    def __init__(self):
        self.people = []

    def join(self, name):
        self.people.append(name)

    def leave(self, name):
        if name in self.people:
            self.people.remove(name)

    def serve(self):
        if not self.people:
            return None
        return self.people.pop(0)''',
    "table": """name,country,founded,members
Harbour Rowers,Norway,1921,140
Lake Swimmers,Finland,1954,85
Forest Runners,Sweden,1978,310
Island Sailors,Denmark,1903,220
Valley Climbers,Austria,1962,175""",
    "config": """{
  "name": "weather-station",
  "interval_seconds": 300,
  "sensors": [
    {"id": "roof", "kind": "temperature", "enabled": true},
    {"id": "cellar", "kind": "humidity", "enabled": true},
    {"id": "garden", "kind": "rain", "enabled": false}
  ],
  "upload": {"host": "station.example.org", "port": 8443, "retries": 5}
}""",
    "script": """#!/bin/sh
set -eu
source="$HOME/photos"
target="/mnt/backup/photos"
if [ ! -d "$target" ]; then
    echo "the backup disk is not there" >&2
    exit 1
fi
rsync --archive --delete "$source/" "$target/"
date > "$target/last-backup.txt"
echo "the backup is done\"""",
    "report": """The bridge over the Ilm was built in 1887 and repaired in 1954 and 1991. In \
April we looked at all twelve arches. Ten of them are sound. The fourth arch has a crack of \
two metres on the upstream side, and water comes through the joints of the ninth. The \
railing is loose in three places. We advise the town to close the bridge to lorries until \
the fourth arch has been repaired.""",
    "query": """SELECT customers.name, customers.city, SUM(orders.amount) AS total
FROM customers
JOIN orders ON orders.customer_id = customers.id
WHERE orders.placed_at >= '2024-01-01'
  AND orders.status = 'paid'
GROUP BY customers.name, customers.city
HAVING SUM(orders.amount) > 1000
ORDER BY total DESC
LIMIT 20;""",
}
TASKS = (
    "Repeat the following text word for word.",
    "Correct the spelling of the following text, change nothing else, and give all of it back.",
    "Write the following text again in full, and add one line at its end.",
    "Quote the following text in full, then say in one sentence what it is about.",
)
REPEATING = [f"{task}\n\n{text}" for text in TEXTS.values() for task in TASKS]

SUBJECTS = (
    "why the sky is blue",
    "how bread rises",
    "what a lighthouse keeper did all day",
    "how to learn to swim as an adult",
    "what makes a good friend",
    "why cats purr",
    "how a bicycle stays upright",
    "what to see in a small old town",
    "how to keep bees",
    "why leaves change colour in autumn",
)
WISHES = (
    "Explain in one paragraph {}.",
    "Write a short poem about {}.",
    "Give a child of eight an answer: {}?",
    "Tell a short story in which somebody wonders {}.",
)
NOT_REPEATING = [wish.format(subject) for subject in SUBJECTS for wish in WISHES]
