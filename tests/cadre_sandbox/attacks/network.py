"""Attacks by sockets: the internet, neighbours on this machine, and the kernel behind rarer families."""

from cadre_sandbox.probes import Attack, tried

ATTACKS = [
    tried("TCP server", "internet", "socket.create_server(('127.0.0.1', 0))"),
    tried("TCP over version 6", "internet", "socket.socket(socket.AF_INET6).connect(('::1', @TCP@))"),
    tried("UDP", "internet", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @UDP@))"),
    tried("raw socket", "internet", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    tried("name look-up", "internet", "socket.getaddrinfo('example.org', 80)"),
    tried(
        "page of the web",
        "internet",
        "__import__('urllib.request').request.urlopen('http://127.0.0.1:@TCP@', timeout=1)",
    ),
    tried("TCP by number", "internet", "raw(41, 198, 2, 1, 0)"),
    tried("connection by number", "internet", "raw(42, 203, 0, buffer(16), 16)"),
    tried("unix socket", "unix sockets", "socket.socket(socket.AF_UNIX).connect('@UNIX@')"),
    tried("abstract socket", "unix sockets", "socket.socket(socket.AF_UNIX).connect('\\0@ABSTRACT@')"),
    tried("unix server", "unix sockets", "socket.socket(socket.AF_UNIX).bind('@FOLDER@/server')"),
    tried("abstract server", "unix sockets", "socket.socket(socket.AF_UNIX).bind('\\0cadre-attack')"),
    Attack(
        "datagram from a pair",
        "unix sockets",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nattack(lambda: a.sendto(b'x', '@DATAGRAM@'))",
        ("error", "ok"),
    ),
    Attack(
        "another address for a pair",
        "unix sockets",
        "a, b = socket.socketpair()\nattack(lambda: raw(42, 203, a.fileno(), buffer(16), 16))",
    ),
    tried("pair of packets", "unix sockets", "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)"),
    Attack(
        "passed descriptors",
        "passed descriptors",
        "a, b = socket.socketpair()\nattack(lambda: socket.send_fds(a, [b'x'], [0] * 60))",
    ),
    Attack(
        "passed identity",
        "passed descriptors",
        "a, b = socket.socketpair()\n"
        "attack(lambda: a.sendmsg([b'x'], [(socket.SOL_SOCKET, 2, bytes(ctypes.c_int(1)) + bytes(8))]))",
    ),
    Attack(
        "many messages at once",
        "passed descriptors",
        "a, b = socket.socketpair()\nattack(lambda: raw(307, 269, a.fileno(), buffer(64), 1, 0))",
    ),
    Attack(
        "options of a pair",
        "passed descriptors",
        "a, b = socket.socketpair()\nattack(lambda: a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30))",
    ),
    tried("netlink", "socket families", "socket.socket(16, socket.SOCK_RAW, 0)"),
    tried("kernel crypto socket", "socket families", "socket.socket(38, socket.SOCK_SEQPACKET)"),
    tried("packets of the wire", "socket families", "socket.socket(17, socket.SOCK_RAW, 3)"),
    tried("socket of the host machine", "socket families", "socket.socket(40, socket.SOCK_STREAM)"),
    tried("bluetooth", "socket families", "raw(41, 198, 31, 3, 0)"),
    tried("cluster socket", "socket families", "raw(41, 198, 30, 5, 0)"),
    tried("fast packets", "socket families", "raw(41, 198, 44, 3, 0)"),
    tried("pair over the internet", "socket families", "raw(53, 199, 2, 1, 0, buffer(8))"),
]
