"""The data of tool_catalogue.py, which says how to read it: words, wordings and entries."""

POLITE = (
    "Can you {}?", "Could you {} for me?", "Please {}, thanks.", "I'd like you to {}.",
    "Would you {}?", "Hey, {}.", "{}, please.", "I want you to {}.", "You have to {}.",
    "Now {}.", "Time to {}.", "Will you {}?",
)  # fmt: skip
REAL = {
    "room": "kitchen,hall,living room,bedroom,cellar,garage,office,bathroom,attic,nursery",
    "door": "front,back,garage,cellar,garden,side,main,balcony",
    "city": """Aston,Oslo,Rome,Paris,Lima,Bern,Leeds,Porto,Kyoto,Cairo,Delhi,Boston,Madrid,Vienna,
    Dublin,Athens,Prague,Turin,New York,Berlin,Quebec,Tunis,Perth,Graz,San Marco,Lyon,Seoul""",
    "country": "Norway,Peru,Italy,Japan,Kenya,Spain,Chile,India,Egypt,Cuba,Ireland,Greece",
    "colour": "red,blue,green,yellow,white,pink,orange,purple,warm white,black,grey",
    "day": "Monday,Tuesday,Wednesday,Thursday,Friday,Saturday,Sunday,today,tomorrow",
    "device": "fan,heater,radio,printer,tablet,laptop,camera,oven,fridge,speaker,tv,phone,router",
    "animal": "cat,dog,horse,rabbit,parrot,goat,hamster,turtle,fox,hen,pony,duck",
    "food": "rice,soup,pasta,pizza,bread,apple pie,cheese,curry,fish,noodles,pancakes,lentils",
    "song": "Blue River,Yesterday,Moonlight,Rain Song,Happy Days,Old Road,Summer,Last Train",
    "film": "The Lake,Night Train,Golden Boy,Red Desert,The Key,Stars,Paper Moon",
    "book": "The Lost Ship,Emma,Dracula,Winter Tales,The White Fox,A Long Way,Stones",
    "artist": "The Foxes,Mira Blue,Abba,Old Hats,Queen,Nina Sol",
    "language": "French,German,Spanish,Italian,Dutch,Polish,Latin,Greek,Turkish",
    "currency": "euros,dollars,pounds,yen,francs,crowns,rupees",
    "product": "lamp,chair,blue shirt,desk,bike,kettle,camera,backpack,tent,red cup,clock,mouse",
    "shop": "Luigi's,Blue Door,Golden Fish,Casa Rosa,The Mill,Green Garden,Old Bell",
    "place": "the airport,the station,Main Street 5,the museum,the office,Park Hotel,home",
    "street": "Main Street,the station,Mill Road,Park Lane,Oak Square,the town hall,the harbour",
    "mountain": "Snowdon,Etna,Mount Kenya,Ben Nevis,the Eiger,Olympus,Fuji",
    "mode": "car,train,bike,bus,plane,foot",
    "plant": "basil,fern,rose,tomato plant,cactus,palm,orchid,ivy",
    "subject": "maths,history,music,art,biology,physics,English,geography,sport",
    "event": "lunch,dentist,team meeting,yoga,piano lesson,birthday party,choir,book club,swimming",
    "topic": "football,space,the election,robots,the weather,trains,music,bees,old coins",
    "team": "Eagles,Red Bulls,Rovers,Tigers,Lions,Hawks,Bears,Sharks",
    "company": "Northwind,Acme,Tesla,Solar One,City Power,Bluebird,Apex",
    "branch": "main,dev,fix-login,feature/cart,release-2,test,docs",
    "table": "users,orders,customers,products,invoices,events",
    "game": "chess,tetris,snake,poker,memory,sudoku,go",
    "unit": "km,miles,metres,feet,inches,kg,pounds,grams,litres,cups",
    "direction": "left,right,up,down,north,south,east,west",
    "format": "png,jpg,pdf,webp,gif,bmp",
    "command": "ls -la,npm test,make build,date,df -h,pytest -q,python main.py,whoami,git log -3",
}  # fmt: skip
NAMED = frozenset("city country song film book artist shop mountain street team company".split())
CLOSED = frozenset("colour day language currency mode unit direction format event place".split())
SAID = (
    "see you at {h}", "buy {a} and {b}", "the {a} is ready", "call me at {h}", "{p} is late",
    "happy birthday", "I am on my way", "where is the {a}", "no {a} today", "bring the {a} to {p}",
    "thank you for the {a}", "the {a} is in the {b}", "good luck {p}", "ask {p} about the {a}",
    "new {a} for {p}", "{n} {a} left", "come home", "I like the {a}",
)  # fmt: skip

# {x} and {y}: what is looked up; {more} {at} {end}: "people live", "in Aston", ""
WORDINGS = {
    "add": (
        "get {x} and {y} and add them / add {x} and {y} / look up {x}, then {y}, and add the two",
        "add up {x} and {y} / find {x} and {y} and tell me the sum / add {x} to {y}",
        "How many {more} {at} and {too} {end} together? / What is {x} plus {y}?",
        "How much do {x} and {y} make together? / What is the sum of {x} and {y}?",
        "I need the sum of {x} and {y}. / How many {more} {at} and {too} {end} in all? Add them.",
    ),
    "subtract": (
        "get {x} and {y} and subtract the second from the first / take {x} minus {y}",
        "find the difference between {x} and {y} / look up {x}, then {y}, and subtract",
        "check {x} and {y} and tell me by how much the first is larger",
        "How many more {more} {at} {end} than {too}? Get both and subtract.",
        "How many more {more} {at} {end} than {too}? / By how much is {x} larger than {y}?",
        "What is {x} minus {y}? / What is the difference between {x} and {y}?",
        "Is {x} larger than {y}, and by how much? / Compare {x} with {y}: how much more is it?",
    ),
    "subtract swapped": (
        "subtract {y} from {x} / take {y} away from {x} / get {y} and subtract it from {x}",
        "How many fewer {more} {too} {end} than {at}? / How much smaller is {y} than {x}?",
        "By how much is {y} less than {x}?",
    ),
    "multiply": (
        "get {x} and {y} and multiply them / multiply {x} by {y} / multiply {x} and {y}",
        "look up {x}, then {y}, and tell me the product / find {x} and multiply it by {y}",
        "What is {x} times {y}? / What is the product of {x} and {y}?",
    ),
    "add one": (
        "get {x} and add {n} to it / add {n} to {x} / look up {x}, then add {n}",
        "check {x} and add {n} / What is {x} plus {n}? / How much is {x} and {n} more?",
    ),
    "subtract one": (
        "get {x} and subtract {n} / subtract {n} from {x} / look up {x}, then take {n} away",
        "What is {x} minus {n}? / If I take {n} away from {x}, how much is left?",
        "How far is {x} above {n}?",
    ),
    "multiply one": (
        "get {x} and multiply it by {n} / multiply {x} by {n} / find {x}, then take it {n} times",
        "What is {x} times {n}? / How much is {n} times that: {x}? / I need {x}, {n} times.",
    ),
}
PASSED = (
    "get {x} and {sink}", "look up {x}, then {sink}", "find out {x} and {sink}",
    "check {x} and {sink}", "first get {x}, then {sink}", "{direct}", "{direct}",
)  # fmt: skip
PASSED_QUESTIONS = (
    "Can you get {x} and {sink}?", "I need {x}: look it up and {sink}.", "Could you {direct}?",
    "What is {x}? Find out and {sink}.", "Please {direct}.", "Once you know {x}, {sink}.",
    "After you have looked up {x}, {sink}.",
)  # fmt: skip

ENTRIES = """
turn_off_light light_off switchLightOff | Turn off the light in a room. / Switches a light off
( room/where/place:room
- turn off the light in the {room} / switch the {room} light off
- switch off the light in the {room}
- turn the {room} light off / make it dark in the {room}
? It's too bright in the {room}, light off please. / Lights out in the {room}! / {room} light off
= The light is off. / off / {room}: off
turn_on_light light_on switchLightOn lamp_on | Turn on the light in a room. / Switches a light on
( room/where/place:room
- turn on the light in the {room} / switch the {room} light on / switch on the lamp in the {room}
- put the light on in the {room}
? It's dark in the {room}, light on please. / I can't see anything in the {room}, turn on the light.
= The light is on. / on / {room}: on
set_brightness dim_light brightness setBrightness | Set how bright a light is, in percent.
( room/lamp/light:room level/percent/value:1..100
- dim the {room} light to {level} percent / set the brightness in the {room} to {level}
- set the {room} lamp to {level} percent / make the light in the {room} {level} percent bright
? Can the light in the {room} go to {level} percent? / I want {level} percent light in the {room}.
= Brightness {level}. / ok / {"brightness": {level}}
set_light_color light_colour color_lamp | Change the colour of a light. / Sets a lamp's colour
( room/place/lamp:room color/colour/value:colour
- make the {room} light {color} / turn the light in the {room} {color}
- change the {room} lamp to {color} / set the colour of the {room} light to {color}
? I want {color} light in the {room}. / Could the lamp in the {room} be {color}?
= The light is {color}. / {color} / changed
set_heating set_temperature heat_room thermostat | Heat a room to so many degrees.
( room/where/zone:room degrees/temperature/target:12..28
- heat the {room} to {degrees} degrees / set the heating in the {room} to {degrees}
- set the {room} to {degrees} degrees / make it {degrees} degrees in the {room}
? I'm cold, {degrees} degrees in the {room} please. / Can the {room} be {degrees} degrees warm?
= The target is {degrees}. / heating / {"target": {degrees}}
room_temperature indoor_temp get_room_temp | Tell how warm a room is. / Temperature in a room
( room/where/name:room
- check the temperature in the {room} / tell me how warm the {room} is
- measure the {room} temperature
? How warm is it in the {room}? / How many degrees does the {room} have? / Is it cold in the {room}?
= temperature > temperature in the {room} > 8..31 / 8..31 degrees / 8..31 C
lock_door lockDoor door_lock | Lock a door. / Locks the door with this name
( door/name/which:door
- lock the {door} door / close and lock the {door} door / make sure that the {door} door is locked
? Is the {door} door open? Then lock it. / I forgot to lock the {door} door, do it for me.
= locked / The {door} door is locked.
door_state is_locked check_door | Tell whether a door is locked. / State of a door
( door/name/which:door
- check the {door} door / see if the {door} door is locked / tell me whether the {door} door is open
? Is the {door} door locked? / Did I lock the {door} door?
? Did somebody leave the {door} door open?
= state > state of the {door} door > locked / open / closed
move_blinds set_blinds blinds | Move the blinds of a room. / Open or close blinds, in percent
( room/where/window:room percent/position/open:0..100
- open the blinds in the {room} to {percent} percent / set the {room} blinds to {percent}
- move the blinds in the {room} to {percent} percent
? I want the {room} blinds at {percent} percent. / Too much sun in the {room}, blinds to {percent}.
= moved / Blinds at {percent}. / {percent}
start_vacuum vacuum clean_room robot_clean | Send the cleaning robot to a room. / Vacuum a room
( ?room/where/area:room
- vacuum the {room} / send the robot to the {room} / clean the floor of the {room}
- start the vacuum / let the robot clean / start cleaning the floor
? The floor in the {room} is dirty, vacuum it. / The {room} needs the vacuum. / Let the robot go.
= cleaning / The robot is on its way. / started
switch_device set_device deviceSwitch set_power | Switch a device on or off.
( device/name/id:device on/state/power:onoff
- switch the {device} {on} / turn the {device} {on} / set the {device} to {on}
- turn {on} the {device}
? Can you turn {on} the {device}? / {device} {on} please. / I want the {device} {on}.
= switched / The {device} is {on}. / ok
power_use get_watts energy_of | Tell how many watts a device uses. / Power use of a device, in watts
( device/name/appliance:device
- check the power use of the {device} / tell me how many watts the {device} uses
- measure the power of the {device}
? How many watts does the {device} use? / How much power does the {device} need?
= power > power use of the {device} > 1..3000 / 1..3000 watts
+ watts does | the {device} | use
water_garden sprinkler start_sprinkler | Water the garden for some minutes. / Run the sprinkler
( minutes/duration/time:1..60
- water the garden for {minutes} minutes / run the sprinkler for {minutes} minutes
- let the sprinkler run {minutes} minutes
? The grass is dry, {minutes} minutes of water please.
? Can you water the lawn for {minutes} minutes?
= The water is on. / started / {minutes} minutes
send_message send_text sendMessage text_person | Send a text message to a person. / Sends a message
( to/person/recipient:person text/message/body:text
- send {to} the text "{text}" / send "{text}" to {to} / write "{text}" to {to}
- text {to} "{text}" / send a message to {to} that says "{text}"
? Text {to}: {text} / Tell {to} "{text}". / Message for {to}: {text} / Let {to} know: {text}.
= Sent to {to}. / sent / message 1..999
& text > send it to {to} / text it to {to} / tell it to {to} / write it to {to}
send_email mail sendMail email_to | Send an email. / Sends a mail to an address
( to/address/email:email subject/title/topic:text body/text/content:text
- mail {to} with the subject "{subject}" and the text "{body}"
- send an email to {to}, subject "{subject}", text "{body}"
- write "{body}" to {to} with the subject "{subject}"
? Mail to {to}. Subject: {subject}. Text: {body}. / Can you email "{body}" to {to} as "{subject}"?
? I need a mail with the title "{subject}" that says "{body}" for {to}.
= sent / Mail sent to {to}. / queued
unread_mail count_unread unreadCount new_mails | Count the unread mails. / How many mails are new
( ?folder/box/label:word
- count my unread mails in {folder} / check for new mails in the folder {folder}
- count my unread mails / check how many new mails I have / look for new mail
? How many unread mails are in {folder}? / Do I have mail? / How many new mails are there?
= count > number of unread mails > 0..99
last_message read_message get_last_text | Get the last message of a person.
( person/from/sender:person
- read me the last message from {person} / show what {person} wrote / get the last text of {person}
? What did {person} write? / Did {person} answer me? / What does {person} say?
= message > last message from {person} says: > @text
forward_mail forward forwardMessage | Forward a mail to an address.
( id/mail/number:1..999 to/address/email:email
- forward mail {id} to {to} / send mail number {id} on to {to}
- forward the mail {id} to the address {to}
? Can {to} get mail {id} too? / Pass mail {id} on to {to}. / I want {to} to read mail {id}.
= forwarded / Mail {id} is on its way.
delete_message remove_mail deleteMail | Delete the message with this number. / Removes a mail
( id/number/message_id:1..9999
- delete message {id} / remove the mail with the number {id} / throw away message number {id}
? Message {id} can go. / I don't need mail {id} any more, delete it. / Get rid of message {id}.
= deleted / Message {id} is gone.
call_person phone_call dial callContact | Call a person on the phone. / Starts a call
( person/name/contact:person
- call {person} / phone {person} / start a call with {person} / ring {person}
? Get {person} on the phone. / I want to talk to {person}. / Can I speak to {person}?
= calling / Calling {person}. / ringing
post_message post_to_channel channel_post | Post a text in a channel. / Write to a chat channel
( channel/room/group:word text/message/content:text
- post "{text}" in {channel} / write "{text}" in the channel {channel}
- post in {channel} that "{text}"
? Tell the channel {channel}: {text} / {channel} should read "{text}".
? New post for {channel}: {text}
= posted / post 1..9999
& text > post it in {channel} / write it in the channel {channel} / share it in {channel}
create_event add_event addToCalendar new_event | Put an event in the calendar. / Creates an event
( title/name/event:event date/day/when:date time/hour/at:hour
- put {title} in the calendar on {date} at {time} / plan {title} for {date} at {time}
- add the event {title} at {time} on {date} / make an event for {date}, {time}, called {title}
? On {date} at {time} I have {title}, write it down. / New event: {title}, {date}, {time}
? Can you add {title} on {date} at {time}?
= event 1..999 / added / {title} added.
cancel_event delete_event remove_event | Remove an event from the calendar. / Cancels an event
( title/event/name:event
- cancel {title} / take {title} out of my calendar / delete the event {title}
? I can't make it to {title}, cancel it. / {title} is not happening, remove it. / No {title} for me.
= cancelled / {title} removed.
next_event upcoming agenda get_next_event | Get the next event in the calendar. / What is planned
( ?day/date/when:day
- check my calendar for {day} / look up what I have on {day} / show my plan for {day}
- check my calendar / show my next event / tell me what is next in my calendar
? What do I have on {day}? / What is planned for {day}? / What's next? / What is my next event?
= event > next event > @event / @event at @hour
set_alarm alarm wake_me setAlarm | Set an alarm. / Rings at this time
( time/hour/at:hour ?day/date/on:day
- set an alarm for {time} on {day} / wake me on {day} at {time} / set the alarm on {day} to {time}
- set an alarm for {time} / wake me at {time} / set the alarm to {time}
? I have to get up at {time}. / Can you wake me at {time}? / On {day} I get up at {time}.
= Alarm set. / alarm 1..99 / {time}
delete_alarm alarm_off cancel_alarm | Delete the alarm at a time. / Turns an alarm off
( time/hour/at:hour
- delete the alarm at {time} / turn off the {time} alarm / cancel my alarm for {time}
? I don't need the alarm at {time}. / No alarm at {time} please. / Let me sleep, no {time} alarm.
= deleted / No alarm at {time}.
start_timer set_timer timer countdown | Start a timer. / Counts down minutes
( minutes/duration/time:1..120
- set a {minutes} minutes timer / start a timer of {minutes} minutes / count down {minutes} minutes
? Tell me when {minutes} minutes are over. / {minutes} minutes timer / Timer, {minutes} minutes.
= started / Timer for {minutes} minutes. / timer 1..20
set_reminder remind remind_me addReminder | Remind the user of something. / Sets a reminder
( text/what/message:text time/when/hour:hour
- remind me at {time}: "{text}" / set a reminder "{text}" for {time}
- remind me of "{text}" at {time}
? At {time} I must not forget "{text}". / Reminder for {time}: {text}
? Can you say "{text}" at {time}?
= reminder 1..99 / I will remind you at {time}. / set
& text > remind me of it at {time} / set a reminder with it for {time}
invite_person invite add_guest inviteTo | Invite a person to an event. / Adds a guest
( person/guest/name:person event/title/to:event
- invite {person} to {event} / ask {person} to come to {event} / add {person} to the event {event}
? {person} should come to {event}. / Can {person} be at {event}? / I want {person} at {event}.
= invited / {person} is invited.
free_hours free_time find_free | Find a free hour on a day. / When nothing is planned
( day/date/on:day
- find a free hour on {day} / look when I am free on {day} / tell me when I have time on {day}
? When am I free on {day}? / When do I have time on {day}? / Is there room for a call on {day}?
= free > free hour on {day} > @hour / @hour to @hour
copy_file copy cp duplicate_file | Copy a file. / Copies a file to a new path
( source/from/src:file target/to/dst:file
- copy {source} to {target} / make a copy of {source} called {target}
- copy the file {source} to {target}
? I want {source} twice, the second one as {target}. / Can you save a copy of {source} as {target}?
= copied / {target}
move_file mv moveFile | Move a file into a folder. / Moves a file
( file/source/path:file folder/target/to:folder
- move {file} to {folder} / put {file} into the folder {folder} / move the file {file} into {folder}
? {file} belongs in {folder}. / Can you put {file} in {folder}? / Into {folder} with {file}.
= moved / {file} is in {folder} now.
rename_file rename renameFile | Rename a file. / Gives a file a new name
( file/old/old_name:file name/new/new_name:file
- rename {file} to {name} / give {file} the name {name} / change the name of {file} to {name}
? {file} should be called {name}. / I don't like the name {file}, use {name}.
? Call {file} {name} now.
= renamed / {name}
delete_file rm remove_file deleteFile | Delete a file. / Removes a file from disk
( file/path/name:file
- delete {file} / remove the file {file} / throw {file} away / get rid of {file}
? I don't need {file} any more. / {file} can go. / Can you delete the file {file}?
= deleted / {file} is gone. / removed 1 file
make_folder mkdir create_folder newFolder | Make a new folder. / Creates a directory
( folder/path/name:folder
- make the folder {folder} / create a new folder {folder} / make a directory called {folder}
? I need a folder named {folder}. / Can I have a new folder {folder}? / New folder: {folder}
= created / {folder}
file_size get_size size_of | Get the size of a file in bytes. / How big a file is
( file/path/name:file
- check the size of {file} / tell me how big {file} is / get the size of the file {file}
? How big is {file}? / How many bytes does {file} have? / Is {file} large?
= size > size of {file} > 1..99999 / 1..99999 bytes / 1..900 KB
+ bytes does | {file} | have
count_lines line_count wc countLines | Count the lines of a file. / Number of lines in a file
( file/path/name:file
- count the lines in {file} / tell me how many lines {file} has / get the line count of {file}
? How many lines does {file} have? / How long is {file}, in lines? / Number of lines in {file}?
= lines > number of lines in {file} > 1..5000
+ lines are | in {file} |
find_in_file grep search_file | Find a word in a file. / Searches a file for a word
( word/pattern/text:word file/path/in_file:file
- find {word} in {file} / search {file} for {word} / look for the word {word} in {file}
? Where in {file} is {word}? / Does {file} have the word {word}? / Is {word} in {file}?
= line > line of {word} in {file} > line 1..400 / 1..400
write_file save_text writeFile save_file | Write a text to a file. / Saves text in a file
( file/path/name:file text/content/data:text
- write "{text}" to {file} / save "{text}" in {file} / put the text "{text}" into the file {file}
? I want {file} to say "{text}". / Write in {file}: {text} / Can you save "{text}" as {file}?
= saved / 1..99 bytes written
& text > save it in {file} / write it to {file} / put it into the file {file}
zip_folder compress zip archive_folder | Pack a folder into an archive. / Zips a folder
( folder/path/source:folder name/archive/target:word
- zip {folder} as {name} / pack the folder {folder} into {name}
- make the archive {name} from {folder}
? I need {folder} as an archive called {name}. / Can you compress {folder} to {name}?
= packed / {name}.zip
get_weather weather forecast weatherIn | Get the weather of a city. / What the weather is like
( city/place/location:city ?day/date/when:day
- check the weather in {city} on {day} / look up how the weather in {city} is on {day}
- check the weather in {city} / look up the weather in {city} / tell me the weather in {city}
? How will the weather be in {city} on {day}? / What will {day} be like in {city}?
? How is the weather in {city}? / Do I need a coat in {city}? / Is it raining in {city}?
= weather > weather in {city} > sunny / rain / cloudy / snow, 0..5 degrees / 1..35 C, dry
outside_temperature temperature_in get_temp | Get the temperature in a city. / Degrees in a city
( city/place/location:city
- get the temperature in {city} / check how warm it is in {city} / tell me the temperature in {city}
? How warm is it in {city}? / How many degrees are there in {city}? / Is it cold in {city}?
= temperature > temperature in {city} > 1..38 / 1..38 C
+ degrees are there | in {city} |
wind_speed get_wind windAt | Get the wind speed at a place. / How strong the wind is
( city/place/location:city
- check the wind in {city} / get the wind speed in {city} / tell me how strong the wind is in {city}
? How windy is it in {city}? / How fast is the wind in {city}? / Is there wind in {city}?
= speed > wind speed in {city} > 0..90 / 0..90 km/h
sunrise sunrise_time sun_up | Tell when the sun rises. / Time of sunrise in a city
( city/place/location:city
- look up the sunrise in {city} / tell me when the sun rises in {city}
- get the time of sunrise in {city}
? When does the sun rise in {city}? / When does it get light in {city}? / Sunrise in {city}?
= sunrise > sunrise in {city} > @hour
get_distance distance how_far distanceBetween | Get the distance between two cities in km.
( from/origin/start:city to/destination/end:city
- get the distance from {from} to {to} / check how far it is from {from} to {to}
- look up how far {to} is from {from} / measure the way from {from} to {to}
? How far is it from {from} to {to}? / I drive to {to} from {from}, how many km is that?
? How many km are there between {from} and {to}? / How far is {to} from {from}?
= distance > distance from {from} to {to} > 2..2000 / 2..2000 km
travel_time trip_time get_travel_time | How long a trip takes. / Travel time between places
( from/origin/start:city to/destination/end:city mode/by/vehicle:mode
- get the travel time from {from} to {to} by {mode}
- check how long the {mode} takes from {from} to {to}
- tell me how long it takes by {mode} to {to} from {from}
? How long does it take from {from} to {to} by {mode}? / By {mode} from {from}, when am I in {to}?
= time > travel time from {from} to {to} > 5..600 / 5..600 minutes / 2..20 hours
order_taxi book_taxi taxi call_cab | Order a taxi. / Books a ride
( from/pickup/start:place to/destination/end:place time/hour/at:hour
- order a taxi from {from} to {to} at {time} / book a ride to {to} at {time} from {from}
- get me a cab at {time} from {from} to {to}
? I'm at {from} and need to be at {to}, taxi at {time} please.
? Can a taxi bring me to {to} from {from} at {time}?
= taxi 1..99 / booked / {"car": 1..99}
next_train train_time find_train nextTrain | Find the next train. / When a train leaves
( from/origin/start:city to/destination/end:city
- find the next train from {from} to {to} / look up trains to {to} from {from}
- get me a train from {from} to {to}
? When does the next train go from {from} to {to}? / How do I get to {to} from {from} by train?
= train > next train from {from} to {to} > @hour / @hour, track 1..12
bus_arrival next_bus bus when_bus | Tell when a bus comes. / Next bus of a line at a stop
( line/number/bus:1..99 stop/station/at:street
- check when bus {line} comes to {stop} / look up bus {line} at {stop}
- tell me the next bus {line} at {stop}
? When is the next {line} at {stop}? / At {stop}, when does bus {line} come?
? Is bus {line} late at {stop}?
= bus > next bus {line} at {stop} > @hour / in 1..30 minutes
book_hotel hotel reserve_hotel bookHotel | Book a hotel in a city. / Books hotel nights
( city/place/location:city nights/count/days:1..14 ?people/guests/persons:1..6
- book a hotel in {city} for {nights} nights / find me a bed in {city} for {nights} nights
- get a room in {city}, {nights} nights / book {nights} nights in {city} for {people} people
- book a hotel in {city} for {people} people and {nights} nights
? We are {people} people and stay {nights} nights in {city}, book us a hotel.
? I will be in {city} for {nights} nights, where can I sleep? Book it.
= booking 100..999 / booked
find_restaurant restaurant where_to_eat | Find a restaurant for a food in a city. / Place to eat
( food/dish/kind:food city/place/town:city
- find a restaurant with {food} in {city} / look for {food} in {city} / find {food} to eat in {city}
? Where can I eat {food} in {city}? / I'm in {city} and want {food}.
? Who has good {food} in {city}?
= restaurant > restaurant for {food} in {city} > @shop / @shop, @street
reserve_table book_table table reserveTable | Reserve a table in a restaurant. / Books a table
( restaurant/place/name:shop people/guests/seats:1..12 time/hour/at:hour
- reserve a table for {people} at {restaurant} at {time}
- book {restaurant} for {people} people at {time}
- get us a table at {restaurant}, {time}, for {people}
? We are {people} and want to eat at {restaurant} at {time}.
? Is {restaurant} free for {people} at {time}?
= table 1..40 / reserved / {people} seats at {time}
free_parking parking_spots parking | Count the free parking spots at a place.
( place/where/street:street
- check the parking at {place} / find out how many spots are free at {place}
- look for parking at {place}
? Can I park at {place}? / How many free spots are there at {place}?
? Where is room at {place} for my car?
= spots > number of free spots at {place} > 0..300
+ free spots are there | at {place} |
get_population population people_in | Get how many people live in a city. / Population of a city
( city/place/town:city
- get the population of {city} / look up how many people live in {city}
- find the population of {city}
? How many people live in {city}? / How big is {city}? / Population of {city}?
= population > population of {city} > 100..99999
+ people live | in {city} |
mountain_height elevation height_of | Get the height of a mountain in metres.
( mountain/name/peak:mountain
- get the height of {mountain} / look up how high {mountain} is / tell me the height of {mountain}
? How high is {mountain}? / How many metres high is {mountain}? / Is {mountain} a high mountain?
= height > height of {mountain} > 200..8000 / 200..8000 m
get_capital capital capitalOf | Get the capital of a country. / Capital city of a country
( country/name/land:country
- get the capital of {country} / look up the capital of {country}
- tell me the capital city of {country}
? What is the capital of {country}? / Which city is the capital of {country}?
? Where does {country} have its capital?
= capital > capital of {country} > @city
get_price price price_of product_price | Get the price of a product in a shop. / What a thing costs
( product/item/name:product
- get the price of the {product} / check what the {product} costs
- look up the price of the {product}
? How much is the {product}? / What does the {product} cost?
? How many coins do I need for the {product}?
= price > price of the {product} > 1..999 / 1..999 coins
+ coins does | the {product} | cost
get_stock in_stock stock_level | Tell how many of a product are in stock. / Stock of a product
( product/item/name:product
- check the stock of the {product} / look how many of the {product} are left
- get the stock of the {product}
? How many of the {product} do we have? / Is the {product} in stock?
? How many of the {product} are left?
= stock > stock of the {product} > 0..500
add_to_cart cart_add buy addToCart | Put a product in the shopping cart. / Adds an item to the cart
( product/item/name:product quantity/count/amount:1..20
- put {quantity} of the {product} in my cart / add the {product} to the cart {quantity} times
- buy the {product} {quantity} times
? I want {quantity} of the {product}. / I'd like the {product}, {quantity} pieces.
? {quantity} x {product} please
= added / {quantity} in the cart / cart: 1..30
order_status track_order orderStatus | Get the status of an order. / Where an order is
( order/id/number:code
- check order {order} / get the status of order {order} / find out where my order {order} is
? Where is my order {order}? / When does {order} come? / Is order {order} on its way?
= status > status of order {order} > sent / packed / on the way / late / here on @day
refund_order refund pay_back | Pay money back for an order. / Refund part of an order
( order/id/number:code amount/money/sum:amount
- refund {amount} for order {order} / pay back {amount} for {order}
- give the customer {amount} back for order {order}
? Order {order} was broken, refund {amount}. / Can I get {amount} back for {order}?
= refunded / {amount} refunded
track_parcel parcel trackPackage where_is_parcel | Tell where a parcel is. / Tracks a parcel
( code/number/parcel:code
- track the parcel {code} / find out where parcel {code} is / look up the package {code}
? Where is my parcel {code}? / Has {code} come yet? / Parcel {code}, where is it?
= place > place of parcel {code} > @city / @street / @city, @hour
get_rating rating stars product_rating | Get the rating of a product in percent.
( product/item/name:product
- get the rating of the {product} / check how good the {product} is
- look up the stars of the {product}
? How good is the {product}? / What do people think of the {product}? / Is the {product} any good?
= rating > rating of the {product} > 1..100 / 1..100 percent / 1..5 stars
get_balance balance account_balance | Get the balance of an account.
( account/name/id:word
- check the account {account} / get the balance of {account}
- tell me how much money is on {account}
? How much money is on the account {account}? / How much is left on {account}? / Is {account} empty?
= balance > balance of {account} > 0..99999 / 0..9999 euros
+ coins are | on {account} |
transfer_money transfer pay send_money | Send money to a person. / Pays somebody an amount
( to/person/recipient:person amount/sum/money:amount
- send {amount} to {to} / pay {to} {amount} / transfer {amount} to {to} / give {to} {amount}
? I owe {to} {amount}, pay it. / {to} gets {amount} from me.
? Can {to} have {amount} from my account?
= transferred / {amount} sent to {to}. / payment 1..999
pay_bill bill payBill settle | Pay a bill of a company. / Pays an amount to a firm
( company/firm/to:company amount/sum/money:amount
- pay the {company} bill of {amount} / pay {amount} to {company}
- settle the bill from {company}, {amount}
? {company} wants {amount} from me, pay it. / My bill from {company} is {amount}, please pay it.
= paid / {amount} paid
exchange_rate rate currency_rate getRate | Get the exchange rate of two currencies.
( from/base/source:currency to/quote/target:currency
- get the rate from {from} to {to} / check how {from} stand against {to} / look up {from} in {to}
? What is the rate of {from} to {to}? / How many {to} do I get for my {from}?
? {from} in {to}, what rate?
= rate > rate from {from} to {to} > 1.1..9 / 0.1..99 / 2..150
convert_currency currency convert_money | Turn an amount of one currency into another.
( amount/value/sum:amount from/source/base:currency to/target/into:currency
- convert {amount} {from} to {to} / change {amount} {from} into {to}
- turn {amount} {from} into {to}
? How much is {amount} {from} in {to}? / How many {to} are {amount} {from}?
? {amount} {from} in {to}
= result > value of {amount} {from} in {to} > 1..9999 / 1..999.5
share_price stock_price quote sharePrice | Get the price of a company's share. / What a share costs
( company/name/symbol:company
- get the share price of {company} / check the {company} share
- look up what a share of {company} costs
? What does a share of {company} cost? / How does {company} do today?
? How high is the {company} share?
= price > share price of {company} > 1..900 / 1..900 dollars
+ dollars does | a share of {company} | cost
play_song play playSong start_music | Play a song. / Plays music
( song/title/name:song ?artist/by/singer:artist
- play {song} / put on {song} / play the song {song} / start the song {song}
- play {song} by {artist} / put on {song} from {artist}
? I want to hear {song}. / Can we listen to {song}? / I like {song} by {artist}, play it.
= playing / Playing {song}. / now: {song}
set_volume volume setVolume loudness | Set the volume, from 0 to 100. / How loud it plays
( level/volume/value:0..100
- set the volume to {level} / turn the volume to {level} / make it {level} loud
- change the volume to {level}
? It's too loud, volume {level} please. / I can't hear it, go to {level}. / Volume {level}
= volume {level} / set
pause_music pause stop_music pauseMusic | Pause the music. / Stops what is playing
- pause the music / stop the music / pause the song / make the music stop
? I need some quiet, no music. / Music off please. / Can it be quiet for a moment?
= paused / The music has stopped.
next_song skip next_track skipSong | Skip to the next song. / Plays the next track
- skip this song / play the next song / go to the next track / skip to the next song
? I don't like this song, next one. / Next song please. / Not this one again, skip it.
= next / Now playing @song.
add_to_playlist playlist_add addSong | Put a song on a playlist. / Adds a song to a list
( song/title/track:song playlist/list/name:word
- put {song} on the playlist {playlist} / add {song} to {playlist}
- save {song} in my list {playlist}
? {song} should be on {playlist}. / I want {song} in the playlist {playlist}.
? {playlist} needs {song}.
= added / {song} is on {playlist}.
who_sings singer artist_of get_artist | Tell who sings a song. / Artist of a song
( song/title/name:song
- find out who sings {song} / get the singer of {song} / look up the artist of {song}
? Who sings {song}? / Who made {song}? / Which artist is {song} by?
= artist > artist of {song} > @artist / @person
film_length movie_length duration_of | Get the length of a film in minutes. / How long a film runs
( film/movie/title:film
- get the length of {film} / check how long {film} is / tell me how many minutes {film} has
? How long is {film}? / How many minutes does {film} run? / When is {film} over if it starts now?
= length > length of {film} > 60..240 / 60..240 minutes
+ minutes does | {film} | run
record_show record recordTv tape | Record a show on a channel. / Records from tv at a time
( channel/station/from:1..99 time/start/at:hour
- record channel {channel} at {time} / tape what is on channel {channel} at {time}
- at {time} record channel {channel}
? I'm not home at {time}, record channel {channel}. / Can you tape channel {channel} at {time}?
= recording 1..50 / set
add_note note save_note new_note | Save a note. / Writes a note down
( text/note/content:text
- note "{text}" / write down "{text}" / save the note "{text}" / make a note that says "{text}"
? Note: {text} / I must not forget: {text} / Can you keep "{text}" for me?
= note 1..99 / saved / noted
& text > write it down as a note / save it as a note / note it / keep it as a note
find_note search_notes notes_with | Find a note with a word. / Search the notes
( word/text/query:word
- find my note about {word} / search my notes for {word} / look for {word} in my notes
? What did I write about {word}? / Do I have a note about {word}? / Where are my notes with {word}?
= note > note about {word} says: > @text
add_todo add_task todo new_task addTask | Put a task on the to-do list. / Adds a task
( task/title/text:text ?day/due/when:day
- put "{task}" on my list for {day} / add the task "{task}" for {day}
- on {day} I have to do "{task}", add it
- put "{task}" on my list / add the task "{task}" / add "{task}" to my tasks
? I have to do "{task}" on {day}. / New task: {task} / On my list: {task}
= task 1..99 / added
& task > put it on my list / add it to my tasks
finish_task complete_task task_done | Mark the task with this number as done. / Finishes a task
( id/task/number:1..99
- mark task {id} as done / finish task {id} / tick off task number {id}
? I have done task {id}. / Task {id} is finished. / Number {id} on my list is done.
= task {id} is done. / finished
add_to_list shopping_add add_item | Put something on the shopping list. / Adds to the list
( item/food/what:food ?count/amount/number:1..24
- put {item} on the shopping list / add {item} to the shopping list
- write {item} on my shopping list
- put {count} {item} on the shopping list / add {item} to the shopping list, {count} of it
? We are out of {item}, put it on the list. / We need {item}. / We need {count} times {item}.
= added / {item} is on the list.
get_phone phone_number find_number | Get the phone number of a person. / Number of a contact
( person/name/contact:person
- get the phone number of {person} / find the number of {person} / look up how to call {person}
? What is the phone number of {person}? / Which number does {person} have?
? How can I call {person}?
= phone > phone number of {person} > @digits
get_email email_of find_email mail_address | Get the email address of a person.
( person/name/contact:person
- get the email of {person} / find the mail address of {person}
- look up the email address of {person}
? What is the email of {person}? / Where can I write to {person}?
? Which mail address does {person} have?
= email > email of {person} > @email
add_contact new_contact save_contact | Save a person's phone number. / Adds a contact
( name/person/contact:person phone/number/tel:digits
- save {name} with the number {phone} / add {name} to my contacts, number {phone}
- make a contact for {name}, {phone}
? The number of {name} is {phone}, save it. / {phone} is {name}, keep that.
? New contact: {name}, {phone}
= saved / contact 1..500
get_birthday birthday birthday_of | Tell when a person has birthday. / Birthday of a contact
( person/name/contact:person
- look up the birthday of {person} / tell me when {person} was born / find the birthday of {person}
? When is the birthday of {person}? / When was {person} born?
? When does {person} turn a year older?
= birthday > birthday of {person} > @fulldate
find_recipe recipe get_recipe recipe_for | Find a recipe for a dish. / What a dish is made of
( dish/food/name:food
- find a recipe for {dish} / look up how to make {dish} / show me how to cook {dish}
? How do I make {dish}? / What do I need for {dish}? / I want to cook {dish}, how does it go?
= recipe > recipe for {dish} > @food, @word and salt / @food with @food / cook 5..90 minutes
get_calories calories kcal_of food_energy | Get the calories of a food. / Energy in food
( food/item/name:food
- get the calories of {food} / check how many calories {food} has / look up the energy in {food}
? How many calories does {food} have? / Is {food} light? / How many calories are in {food}?
= calories > number of calories in {food} > 10..900 / 10..900 kcal
+ calories are | in {food} |
start_oven oven bake set_oven | Heat the oven. / Bakes at a temperature for some minutes
( degrees/temperature/heat:100..250 minutes/time/duration:5..99
- heat the oven to {degrees} degrees for {minutes} minutes
- bake {minutes} minutes at {degrees} degrees
- set the oven to {minutes} minutes and {degrees} degrees
? The cake needs {degrees} degrees for {minutes} minutes.
? Can you bake this at {degrees} for {minutes} minutes?
= The oven is on. / heating / {degrees} degrees
water_plant plant_water give_water | Water a plant. / Gives a plant some millilitres
( plant/name/which:plant ml/amount/water:50..900
- water the {plant} with {ml} ml / give the {plant} {ml} ml of water / pour {ml} ml on the {plant}
? The {plant} is dry, {ml} ml please. / Does the {plant} want {ml} ml? Then water it.
? {ml} ml for the {plant}
= watered / {ml} ml given
feed_animal feed feed_pet feedPet | Feed an animal. / Gives an animal grams of food
( animal/pet/name:animal grams/amount/food:10..500
- feed the {animal} {grams} grams / give the {animal} {grams} grams of food
- give {grams} grams to the {animal}
? The {animal} is hungry, {grams} grams please. / Can the {animal} have {grams} grams?
? {grams} grams for the {animal}
= fed / The {animal} is eating. / {grams} grams
animal_age lifespan max_age life_of | Tell how many years an animal lives. / Life span of an animal
( animal/name/species:animal
- look up how old the {animal} gets / get the life span of the {animal}
- find how long the {animal} lives
? How old does the {animal} get? / How many years does the {animal} live?
? How long is the life of the {animal}?
= years > life span of the {animal} > 1..120 / 1..120 years
+ years does | the {animal} | live
match_score score get_score result_of | Get the score of a match of two teams. / How a game went
( home/team1/team_a:team away/team2/team_b:team
- get the score of {home} against {away} / check how {home} and {away} played
- look up {home} against {away}
? How did {home} play against {away}? / Who won, {home} or {away}?
? What is the score of {home} against {away}?
= score > score of {home} against {away} > 0..6 to 0..6 / 0..5:0..5
team_points points get_points season_points | Get the points of a team. / How many points a team has
( team/name/club:team
- get the points of {team} / check how many points {team} have / look up the points of {team}
? How many points do {team} have? / How do {team} stand? / Are {team} doing well?
= points > number of points of {team} > 0..99 / 0..99 points
+ points do | {team} | have
next_match next_game match_day nextMatch | Tell when a team plays next. / Next match of a team
( team/name/club:team
- find the next match of {team} / check when {team} play / look up the next game of {team}
? When do {team} play next? / When is the next match of {team}? / When can I see {team}?
= match > next match of {team} > @day / @day at @hour / @fulldate
get_steps steps step_count walked | Get the steps of a person. / How many steps somebody walked
( person/name/user:person
- get the steps of {person} / check how many steps {person} walked / count the steps of {person}
? How many steps did {person} walk? / How far did {person} walk, in steps? / Did {person} walk much?
= steps > number of steps of {person} > 100..30000 / 100..30000 steps
+ steps did | {person} | walk
heart_rate pulse get_pulse heartRate | Get the heart rate of a person. / How fast the heart beats
( person/name/user:person
- check the pulse of {person} / get the heart rate of {person}
- measure how fast the heart of {person} beats
? How fast is the heart of {person}? / What is the pulse of {person}? / Is the heart of {person} ok?
= rate > heart rate of {person} > 45..190 / 45..190 per minute
log_weight weight save_weight | Save a weight in kg. / Writes down how much a person weighs
( kg/weight/value:3..140 ?person/name/user:person
- write down {kg} kg for {person} / save a weight of {kg} kg for {person}
- write down my weight, {kg} kg / save {kg} kg as my weight / log a weight of {kg} kg
? {person} weighs {kg} kg now. / I weigh {kg} kg today. / The scale says {kg} kg, keep that.
= saved / weight {kg}
sleep_hours sleep slept get_sleep | Tell how long a person slept on a day. / Hours of sleep
( person/name/user:person day/night/date:day
- check how long {person} slept on {day} / get the sleep of {person} for {day}
- look up for {day} how {person} slept
? How long did {person} sleep on {day}? / Did {person} sleep well on {day}?
? On {day}, how was the night of {person}?
= sleep > sleep of {person} on {day} > 1..12 hours / 1..12
battery_level battery get_battery charge_of | Get the battery level of a device in percent.
( device/name/id:device
- check the battery of the {device} / get the battery level of the {device}
- look how full the battery of the {device} is
? How full is the battery of the {device}? / Does the {device} need power?
? Is the {device} nearly empty?
= battery > battery level of the {device} > 0..100 / 0..100 percent / 0..100%
restart_device restart reboot rebootDevice | Restart a device. / Turns a device off and on again
( device/name/host:device
- restart the {device} / reboot the {device} / turn the {device} off and on again
? The {device} does not answer, restart it. / The {device} is stuck. / Can the {device} start again?
= restarting / The {device} is back.
find_device locate_device where_is_device | Tell where a device is. / Locates a device
( device/name/thing:device
- find my {device} / locate the {device} / tell me where the {device} is / look for the {device}
? Where is my {device}? / I lost my {device}, where is it? / Has anybody seen the {device}?
= place > place of the {device} > @room / @place / the @room
set_wifi wifi toggle_wifi wifiSwitch | Switch the wifi on or off.
( on/enabled/state:onoff
- turn the wifi {on} / switch the wifi {on} / set the wifi to {on} / turn {on} the wifi
? Wifi {on} please. / I want the wifi {on}. / Can the wifi be {on}?
= ok / wifi {on}
print_file print printFile print_document | Print a file. / Prints copies of a document
( file/path/document:file ?copies/count/number:1..50
- print {file} / send {file} to the printer / put {file} on paper / print the file {file}
- print {file} {copies} times / print {copies} copies of {file} / make {copies} prints of {file}
? I need {file} on paper. / Can I have {file} on paper? / I need {copies} copies of {file}.
? {copies} x {file} on paper
= printing / job 1..999
printer_pages paper_left paper get_paper | Tell how many sheets a printer has. / Paper in a printer
( printer/name/room:room
- check the paper in the {printer} printer / count the sheets in the {printer} printer
- look how much paper the {printer} printer has
? How much paper is in the {printer} printer? / Does the {printer} printer need paper?
? How many sheets are in the {printer} printer?
= sheets > number of sheets in the {printer} printer > 0..500 / 0..500 sheets
+ sheets are | in the {printer} printer |
book_room meeting_room reserve_room bookRoom | Book a room at a time. / Reserves a meeting room
( room/name/place:1..400 day/date/on:day time/hour/at:hour
- book room {room} on {day} at {time} / reserve room {room} for {day}, {time}
- at {time} on {day} book room {room}
? We meet on {day} at {time} in room {room}. / Is room {room} free on {day} at {time}? Book it.
= booked / booking 1..999
get_mark mark grade get_grade | Get the mark of a student in a subject. / How good a student is
( student/name/pupil:person subject/course/class:subject
- get the {subject} mark of {student} / check how {student} did in {subject}
- look up the mark in {subject} of {student}
? What mark does {student} have in {subject}? / How good is {student} in {subject}?
? In {subject}, how did {student} do?
= mark > mark of {student} in {subject} > 1..6 / A / B / C / D / 1..15 points
set_mark give_mark enter_grade setGrade | Give a student a mark. / Enters a mark in a subject
( student/name/pupil:person subject/course/class:subject mark/grade/value:1..15
- give {student} a {mark} in {subject} / enter mark {mark} for {student} in {subject}
- in {subject} give {student} the mark {mark}
? {student} gets a {mark} in {subject}. / The {subject} mark of {student} is {mark}, enter it.
= entered / mark {mark} saved
find_book book_shelf where_book findBook | Tell on which shelf a book is. / Find a book
( title/book/name:book
- find the book {title} / look where {title} is / look up the shelf of {title}
? Where is the book {title}? / Do you have {title}? / On which shelf is {title}?
= shelf > shelf of {title} > 1..90 / shelf 1..90 / @code
reserve_book hold_book reserveBook | Keep a book for a reader. / Reserves a book for a person
( title/book/name:book person/reader/for_whom:person
- reserve {title} for {person} / keep the book {title} for {person} / put {title} aside for {person}
? {person} wants to read {title}. / Can {person} have {title} next? / For {person}: the book {title}
= reserved / Kept for {person}.
book_pages page_count pages_of | Tell how many pages a book has. / Number of pages of a book
( title/book/name:book
- get the number of pages of {title} / check how long {title} is
- look up how many pages {title} has
? How many pages does {title} have? / How long is the book {title}? / How thick is {title}?
= pages > number of pages of {title} > 20..1500 / 20..1500 pages
+ pages does | {title} | have
get_author author who_wrote author_of | Tell who wrote a book. / Author of a book
( title/book/name:book
- find out who wrote {title} / get the author of {title} / look up the author of {title}
? Who wrote {title}? / Who is the author of {title}? / Which author is {title} by?
= author > author of {title} > @person
roll_dice dice roll rollDice | Roll dice. / Rolls a die with so many sides
( sides/faces/size:2..100
- roll a die with {sides} sides / throw a {sides} sided die / roll the {sides} sided die
? What does a die with {sides} sides show? / I need a roll of a {sides} sided die.
? Die with {sides} sides please.
= roll > roll > 1 / 2 / 1..2
flip_coin coin toss_coin flipCoin | Flip a coin. / Heads or tails
- flip a coin / toss a coin / throw a coin / flip a coin for me
? Heads or tails? / Let a coin decide. / What does the coin say?
= coin > coin > heads / tails
start_game new_game play_game launch_game | Start a game. / Starts a game with some players
( game/name/title:game ?players/count/people:1..8
- start {game} / start a game of {game} / let us play {game} / open the game {game}
- start {game} with {players} players / start a game of {game} for {players}
? I want to play {game}. / How about a round of {game}? / We are {players} and want to play {game}.
= game 1..99 / started / Your move.
move_player move step go_to walk | Move in a direction. / Walks some steps in a game
( direction/where/way:direction steps/count/distance:1..50
- go {steps} steps {direction} / move {direction} by {steps} / walk {direction} for {steps} steps
? I want to be {steps} steps further {direction}. / {steps} steps {direction} please.
? Can I move {direction} {steps} times?
= moved / You are at 0..99, 0..99.
high_score best_score top_score record_of | Get the best score of a player. / Record of a player
( player/name/user:person
- get the best score of {player} / look up the record of {player} / check the high score of {player}
? What is the best score of {player}? / How many points did {player} make at best?
? How good is {player}?
= score > best score of {player} > 10..99999
+ points did | {player} | get
subtract minus difference subtract_numbers take_away | Subtract two numbers. / Difference of numbers
( a/x/first/left:number b/y/second/right:number
- subtract {b} from {a} / take {b} away from {a} / compute {a} - {b} / compute {a} minus {b}
? What is {a} minus {b}? / What is {a} - {b}? / How much is {a} less {b}? / I had {a} and lost {b}.
= difference > difference > !subtract
multiply times product multiply_numbers mul | Multiply two numbers. / Product of numbers
( a/x/first/left:number b/y/second/right:number
- multiply {a} by {b} / compute {a} times {b} / multiply {a} and {b} / compute {a} * {b}
? What is {a} times {b}? / How much is {a} * {b}? / What is the product of {a} and {b}?
= product > product > !multiply
divide division divide_numbers quotient | Divide a by b. / Quotient of two numbers
( a/x/number/total:number b/y/divisor/by:1..99
- divide {a} by {b} / compute {a} divided by {b}
- split {a} into {b} equal parts
? What is {a} divided by {b}? / How much does each get if {b} people share {a}? / {a} over {b}
= quotient > quotient > !divide
average mean average_of avg | Average of two numbers. / Mean of a and b
( a/x/first:number b/y/second:number
- compute the average of {a} and {b} / find the mean of {a} and {b}
- take the average of {a} and {b}
? What is the average of {a} and {b}? / What lies in the middle of {a} and {b}?
? Mean of {a} and {b}?
= average > average > !average
random_number random rand pick_number | Pick a random number between two numbers.
( min/low/from:0..99 max/high/to:100..999
- pick a number from {min} to {max} / give me a random number between {min} and {max}
- draw a number between {min} and {max}
? Any number between {min} and {max}? / Choose a number from {min} to {max}.
? Random number, {min} to {max}
= number > random number from {min} to {max} > 0..99 / 100..999
compare larger max_of bigger maximum | Return the larger of two numbers. / Compares two numbers
( a/x/first:number b/y/second:number
- compare {a} and {b} / find the larger of {a} and {b} / tell me which is larger, {a} or {b}
? Which is larger, {a} or {b}? / Is {a} more than {b}? / {a} or {b}, what is more?
= larger > larger number > !larger
percent_of percent percentage get_percent | Take a percentage of a number. / Percent of a value
( percent/rate/share:1..100 number/of/value:number
- compute {percent} percent of {number} / take {percent} percent of {number}
- find {percent} percent of {number}
? What is {percent} percent of {number}? / How much is {percent}% of {number}?
? {number} coins, {percent} percent tip, how much is that?
= result > result > !percent
square_number square squared pow2 | Multiply a number by itself. / Square of a number
( number/n/x:1..999
- square {number} / compute the square of {number} / multiply {number} by itself
? What is {number} squared? / What is the square of {number}? / How much is {number} times itself?
= square > square of {number} > !square
convert_units convert unit_convert convertUnit | Convert a value from one unit into another.
( value/amount/number:amount from/from_unit/source:unit to/to_unit/target:unit
- convert {value} {from} to {to} / turn {value} {from} into {to} / change {value} {from} to {to}
? How many {to} are {value} {from}? / How much is {value} {from} in {to}?
? I have {value} {from}, what is that in {to}?
= result > value of {value} {from} in {to} > 1..9999 / 1..900 {to}
translate translate_text translation to_language | Translate a text. / Into another language
( text/input/phrase:text language/to/target:language
- translate "{text}" into {language} / say "{text}" in {language} / put "{text}" into {language}
? What is "{text}" in {language}? / How do you say "{text}" in {language}?
? In {language}, what is "{text}"?
= translation > translation > @word @word / @word @word @word / @word
& text > translate it into {language} / put it into {language} / say it in {language}
define_word dictionary define meaning_of | Tell what a word means. / Dictionary
( word/term/entry:word
- look up {word} in the dictionary / define {word} / find the meaning of {word}
- explain the word {word}
? What does {word} mean? / What is the meaning of {word}? / I don't know the word {word}.
= meaning > meaning of {word} > a kind of @word / small @word
find_rhyme rhyme rhymes_with | Find a word that rhymes. / Rhyme for a word
( word/term/text:word
- find a rhyme for {word} / look for a word that rhymes with {word} / get a rhyme with {word}
? What rhymes with {word}? / Which word sounds like {word}? / I need a rhyme for {word}.
= rhyme > rhyme for {word} > @word
reverse_text reverse flip_text backwards | Write a text backwards. / Reverses a word
( text/word/input:word
- write {text} backwards / reverse the word {text} / turn {text} around
? What is {text} backwards? / How do you write {text} from the end?
? What does {text} look like backwards?
= reversed > word {text} backwards > !reverse
count_letter letter_count countChar | Count a letter in a word.
( word/text/input:word letter/char/character:letter
- count the letter {letter} in {word} / count how many {letter} the word {word} has
- look how often {letter} is in {word}
? How often is {letter} in {word}? / How many times does {word} have the letter {letter}?
= count > number of {letter} in {word} > !letters
web_search search search_web google | Search the web. / Finds pages on a topic
( query/q/text:topic
- search the web for {query} / look for {query} on the web / find pages about {query}
? What does the web say about {query}? / I want to read about {query}.
? Is there something new about {query}?
= result > first page about {query} > @url
open_page open_url browse fetch_url | Open a web page. / Fetches the page at an address
( url/address/page:url
- open {url} / go to {url} / fetch the page {url} / show me {url}
? What is on {url}? / Can I see {url}? / I want to read {url}.
= text > page {url} says: > @text
download_file download get_url wget | Download something into a file. / Saves a web address to disk
( url/source/from:url file/target/to:file
- download {url} to {file} / save {url} as {file} / get {url} and put it into {file}
? I want {url} on my disk as {file}. / Into {file} please: {url} / Can I have {url} as {file}?
= downloaded / 1..900 KB
run_query query sql execute_sql runQuery | Run an SQL query. / Asks the database
( query/sql/statement:query
- run the query "{query}" / run "{query}" on the database / send "{query}" to the database
? What does "{query}" give? / Query: {query} / Can you ask the database "{query}"?
= rows > result of the query > 0..999 / @person, @person / @word / no rows
count_rows row_count table_size countRows | Count the rows of a table. / How many rows a table has
( table/name/source:table
- count the rows in {table} / get the number of rows of the table {table}
- check how big the table {table} is
? How many rows does {table} have? / How many {table} are in the database?
? How big is the table {table}?
= rows > number of rows in {table} > 0..99999
+ rows are | in {table} |
run_command shell bash exec terminal | Run a command in the shell. / Executes a command
( command/cmd/line:command
- run {command} / run the command {command} / execute {command} / run {command} in the shell
? What does {command} print? / What does the shell say to {command}?
? Start {command} in a terminal.
= output > output of {command} > 0 errors / 1..99 passed / @file / @word @word / 3 files changed
git_status status repo_status gitStatus | Show what has changed in the repository.
- show the git status / check what has changed in git / look at the state of the repository
? What has changed in the repository? / Is there something to commit? / What is the git status?
= status > git status > clean / 1..9 files changed / M @file / new file @file
checkout_branch git_checkout switch_branch | Switch to a branch. / Checks a branch out
( branch/name/ref:branch
- switch to the branch {branch} / check out {branch} / go to branch {branch}
? I want to work on {branch}. / Can we go to the branch {branch}? / Back to {branch} please.
= switched to {branch} / on {branch}
git_commit commit save_changes commitAll | Commit all changes with a message.
( message/text/title:text
- commit with the message "{message}" / commit everything as "{message}" / make a commit "{message}"
? Commit message: {message} / Can you commit this as "{message}"?
? These changes should go in as "{message}".
= commit @code / committed
stop_process kill kill_process end_process | Stop a process. / Ends the process with this id
( pid/id/process:100..32000
- stop process {pid} / kill the process {pid} / end the process with the id {pid}
? Process {pid} hangs, stop it. / Process {pid} must go. / Can you get rid of process {pid}?
= stopped / killed {pid}
resize_image resize scale_image resizeImage | Change the size of an image. / Scales an image
( file/path/image:file width/w/x:16..4000 height/h/y:16..4000
- resize {file} to {width} by {height} / make {file} {width} wide and {height} high
- scale the image {file} to width {width} and height {height}
? I need {file} with {width} x {height} pixels. / {file} should be {height} high and {width} wide.
= resized / {width}x{height}
rotate_image rotate turn_image rotateImage | Rotate an image by degrees. / Turns a picture
( file/path/image:file degrees/angle/by:1..359
- rotate {file} by {degrees} degrees / turn the picture {file} {degrees} degrees
- turn {file} by {degrees}
? The picture {file} should be turned {degrees} degrees. / {degrees} degrees for {file} please.
= rotated / {file} saved
convert_image image_format save_as change_format | Save an image in another format.
( file/path/image:file format/type/to:format
- convert {file} to {format} / save the image {file} as {format} / turn {file} into a {format}
? I need {file} as {format}. / Can I have {file} in {format}? / {format} please, from {file}
= converted / saved as {format}
make_image draw generate_image paint | Make a picture from a text. / Draws what a text says
( text/prompt/description:text
- draw a picture of "{text}" / make an image that shows "{text}" / paint "{text}"
? I want to see "{text}" as a picture. / Picture of: {text} / What does "{text}" look like? Draw it.
= image 1..999 / drawn
get_news news headlines latest_news | Get the latest news on a topic. / News about something
( topic/about/subject:topic
- get the news about {topic} / look up what is new about {topic} / show me the news on {topic}
? What is the latest news about {topic}? / What is new about {topic}? / Any news about {topic}?
= news > latest news about {topic} says: > @text
time_in_city city_time local_time timeIn | Tell what time it is in a city. / Local time of a place
( city/place/zone:city
- check the time in {city} / tell me what time it is in {city} / look up the local time of {city}
? What time is it in {city}? / How late is it in {city}? / Is it still day in {city}?
= time > time in {city} > @hour
weekday day_of which_day dayOfWeek | Tell which day of the week a date is. / Weekday of a date
( date/when/day:fulldate
- find out which day {date} is / get the weekday of {date} / look up the day of the week of {date}
? Which day is {date}? / What day of the week is {date}? / On which weekday does {date} fall?
= weekday > weekday of {date} > Monday / Tuesday / Wednesday / Thursday / Friday / Saturday / Sunday
count_words word_count words_in countWords | Count the words of a text.
( text/input/content:text
- count the words in "{text}" / count how many words "{text}" has / get the word count of "{text}"
? How many words does "{text}" have? / How many words are in "{text}"? / Words in "{text}"?
= words > number of words > !words
flight_status flight check_flight flightInfo | Get the status of a flight. / When a flight leaves
( flight/number/code:code
- check flight {flight} / get the status of flight {flight} / look up the flight {flight}
? Is flight {flight} late? / When does {flight} leave? / How is my flight {flight} doing?
= status > status of flight {flight} > on time / late / leaves at @hour / gate 1..60
"""
