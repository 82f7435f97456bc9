/* What the programs know, share and leave behind. All of it is pinned; a
 * version that finds maps of other layouts asks for psidecar unload. */
#pragma once
#include "kernel.h"
#include "reasons.h"

#define PATH_SIZE 488

/* IPv4 addresses stand in here as ::ffff:a.b.c.d. */
struct address {
	__be32 w[4];
};

struct settings {
	__u32 mark;          /* of the proxy's listeners and own sockets */
	__u32 exempt_groups; /* how many groups have EXEMPT */
};

#define FAIL_CLOSED 1 /* refuse what cannot be redirected */
#define LOOPBACK 2    /* redirect connects to loopback addresses too */
#define EXEMPT 4      /* the processes of this very cgroup are the proxy's */
#define SPARE 8       /* connects go direct, but for those that ways has */

struct group {
	__u32 flags;
	char path[PATH_SIZE]; /* for people */
};

/* Where the proxy listens for a group's processes in a network namespace. */
struct place {
	__u64 netns; /* cookie */
	__u64 group; /* cgroup id */
};

struct listener {
	__be16 port4, port6; /* on 127.0.0.1 and ::1; 0: none */
};

/* Where connects of a group that has SPARE go. */
struct way {
	__u64 group;
	struct address to;
	__be16 to_port;
	__u16 unused;
	__u32 unused2;
};

/* A connection as the proxy sees it when it accepts. */
struct client {
	__u64 netns;
	struct address address;
	__u16 port;     /* host order */
	__u16 listener; /* port, host order */
	__u32 unused;
};

/* A socket whose connect was redirected, by its cookie. */
struct remembered {
	struct client client; /* address and port known once the SYN is sent */
	struct address to;
	__be16 to_port;
	__u8 v4; /* on the wire */
	__u8 sent;
	__u32 unused;
};

struct destination {
	struct address to;
	__be16 to_port;
	__u8 asked, unused;
	__u32 unused2;
	__u64 cookie; /* of the client's socket */
};

struct exclusion {
	__u32 prefix; /* bits of what follows */
	__be16 port;  /* 0: any */
	__u8 address[16];
	__u16 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct place);
	__type(value, struct listener);
} listeners SEC(".maps");

/* Entries go when their socket closes; the oldest go first where more sockets
 * live than fit. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct remembered);
} sockets SEC(".maps");

/* What was in sockets until its socket closed, for an agent that reads later
 * what the socket sent. Cookies are not used again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct remembered);
} ended SEC(".maps");

/* Entries go when the client's socket closes, once the proxy has asked. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct client);
	__type(value, struct destination);
} destinations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct exclusion);
	__type(value, __u32);
} exclusions SEC(".maps");

/* 0: to the proxy. Otherwise connects fail until then, in nanoseconds of the
 * monotonic clock, and go direct from then on: an earlier connection through
 * the proxy has not ended at its other end yet. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct way);
	__type(value, __u64);
} ways SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

always void count(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &reason);

	if (n)
		__sync_fetch_and_add(n, 1);
}
