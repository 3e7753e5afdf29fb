"""URLs that try to reach what no agent is: our own machine, our own network, the cloud's metadata."""

from __future__ import annotations

#: Where calls may go in these tests.
PUBLIC = ("93.184.216.34", "2606:2800:220:1::1")

#: What the resolver of the tests says; a name with several lists gives them in turn.
NAMES: dict[str, list[list[str]]] = {
    "public.test": [["93.184.216.34"]],
    "public6.test": [["2606:2800:220:1::1"]],
    "localhost": [["127.0.0.1", "::1"]],
    "loop.test": [["127.0.0.1"]],
    "loop6.test": [["::1"]],
    "zero.test": [["0.0.0.0"]],
    "ten.test": [["10.1.2.3"]],
    "home.test": [["192.168.1.1"]],
    "middle.test": [["172.20.0.1"]],
    "carrier.test": [["100.64.0.1"]],
    "bench.test": [["198.18.0.1"]],
    "ula.test": [["fd12:3456:789a::1"]],
    "link.test": [["169.254.1.1"]],
    "link6.test": [["fe80::1"]],
    "meta.test": [["169.254.169.254"]],
    "mapped.test": [["::ffff:169.254.169.254"]],
    "nat64.test": [["64:ff9b::a9fe:a9fe"]],
    "sixtofour.test": [["2002:7f00:1::"]],
    "azure.test": [["168.63.129.16"]],
    "multicast.test": [["224.0.0.1"]],
    "mixed.test": [["93.184.216.34", "127.0.0.1"]],
    "mixed-late.test": [["93.184.216.34", "2606:2800:220:1::1", "169.254.169.254"]],
    "rebind.test": [["93.184.216.34"], ["127.0.0.1"]],
    "rebind-meta.test": [["93.184.216.34"], ["169.254.169.254"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "metadata": [["169.254.169.254"]],
    "instance-data": [["169.254.169.254"]],
    "127.0.0.1.nip.test": [["127.0.0.1"]],
    "xn--n3h.test": [["10.0.0.1"]],
}


def words(text: str) -> list[str]:
    return text.split()


LOOPBACK = words("""
127.0.0.1 127.0.0.1. 127.1 127.0.1 127.000.000.001 127.0.0.2 127.255.255.254 2130706433 2130706433. 0x7f000001
0x7F.1 0x7f.0x0.0x0.0x1 017700000001 0177.0.0.1 0177.0.0.01 0177.1 00000177.0.0.1 0x7f.0.0.1 127.0x0.0.1 [::1]
[0:0:0:0:0:0:0:1] [0000::0001] [::ffff:127.0.0.1] [::FFFF:7F00:1] [0:0:0:0:0:ffff:7f00:1] [::127.0.0.1]
[::7f00:1] localhost LOCALHOST localhost. loop.test loop6.test 127.0.0.1.nip.test １２７.0.0.1 127。0。0。1
127．0．0．1 127｡0｡0｡1 ⑫7.0.0.1 ⓛocalhost ｌｏｃａｌｈｏｓｔ
""")
UNSPECIFIED = words("""
0.0.0.0 0 0x0 00 0.0 0.0.0 0.1.2.3 0.255.255.255 [::] [0:0:0:0:0:0:0:0] [::ffff:0.0.0.0] zero.test
""")
PRIVATE = words("""
10.0.0.1 10.255.255.255 10.1 167772161 0xa000001 012.0.0.1 [::ffff:10.0.0.1] [::10.0.0.1] ten.test 172.16.0.1
172.31.255.255 0xac100001 2886729729 [::ffff:ac10:1] middle.test 192.168.0.1 192.168.1.1 192.168.257
3232235777 0300.0250.1.1 0xc0a80101 [::ffff:192.168.1.1] home.test 100.64.0.1 100.127.255.254 carrier.test
198.18.0.1 198.19.255.255 bench.test [fc00::1] [fd00::1] [fdff:ffff::1] [fd12:3456:789a:1::1] ula.test ☃.test
""")
NEVER = words("""
169.254.169.254 169.254.169.254. 169.254.43518 169.16689662 2852039166 0xa9fea9fe 0xA9.0xFE.0xA9.0xFE
0251.0376.0251.0376 025177524776 169.254.170.2 169.254.0.1 169.254.255.255 ①⑥⑨.254.169.254 169。254。169。254
[::ffff:169.254.169.254] [::ffff:a9fe:a9fe] [0:0:0:0:0:ffff:a9fe:a9fe] [::169.254.169.254] [::a9fe:a9fe]
[64:ff9b::169.254.169.254] [64:ff9b::a9fe:a9fe] [64:ff9b:1::a9fe:a9fe] [64:ff9b::7f00:1] [2002:a9fe:a9fe::]
[::ffff:0:127.0.0.1] [::ffff:0:a00:1] [::ffff:0:8.8.8.8]
[2002:7f00:1::] [2001:0:53aa:64c::5601:5601] [fe80::1] [fe80::a9fe:a9fe] [febf::1] [fec0::1] [fd00:ec2::254]
[fd20:ce::254] 168.63.129.16 2822734096 100.100.100.200 0x646464c8 192.0.0.192 192.0.0.1
[::ffff:100.100.100.200] [::ffff:168.63.129.16] 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 4294967295
[ff02::1] [ff0e::1] [::ffff:224.0.0.1] link.test link6.test meta.test mapped.test nat64.test sixtofour.test
azure.test multicast.test mixed-late.test metadata.google.internal metadata.google.internal.
METADATA.GOOGLE.INTERNAL metadata instance-data
""")
MIXED = ["mixed.test"]

#: Not URLs of agents at all.
NO_URLS = [
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_INFO",
    "ftp://127.0.0.1/",
    "dict://127.0.0.1:11211/stat",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
    "ws://127.0.0.1/",
    "data:text/plain,x",
    "javascript:alert(1)",
    "//127.0.0.1/",
    "127.0.0.1",
    "http:",
    "http://",
    "http:///path",
    "http:127.0.0.1",
    "http://@127.0.0.1/",
    "http://public.test@127.0.0.1/",
    "http://public.test:80@127.0.0.1/",
    "http://user:pass@public.test/",
    "http://public.test\\@127.0.0.1/",
    "http://127.0.0.1\\.public.test/",
    "http://public.test\r\nHost: 127.0.0.1/",
    "http://public.test/\r\nX-Injected: 1",
    "http://public.test/\tx",
    "http://public.test /",
    "http://127.0.0.1\x00.public.test/",
    "http://[::1/",
    "http://[::1]x/",
    "http://public.test:0/",
    "http://public.test:99999/",
    "http://public.test:x/",
]


def urls(hosts: list[str]) -> list[str]:
    """Each host by http, on odd ports and by https in turn."""
    forms = ("http://{}/", "http://{}:8080/latest/meta-data/", "https://{}/", "http://{}:6379/?a=b#c")
    return [forms[number % len(forms)].format(host) for number, host in enumerate(hosts)]


HOSTS = [*LOOPBACK, *UNSPECIFIED, *PRIVATE, *NEVER, *MIXED]
CORPUS = [*urls(HOSTS), *NO_URLS]
