/* The little of the kernel's ABI that the programs use, so that they compile
 * against no kernel's headers and load on any kernel that has these helpers:
 * nothing here depends on the layout of internal structures. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

/* Flags of bpf_map_update_elem: create or replace; create only. */
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
/* Flags of bpf_ringbuf_output, and of bpf_ringbuf_query: bytes not read yet. */
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2, BPF_RB_AVAIL_DATA = 0 };

struct bpf_sock;

/* The context of a cgroup_skb program. The fields are not memory: the verifier
 * rewrites each access. len counts from the IP header on. gso_segs is the number
 * of segments on the wire that the packet stands for. */
struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto;
	__u32 priority, ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end;
	__u32 napi_id, family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4];
	__u32 remote_port, local_port, data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len, gso_segs;
	__attribute__((aligned(8))) struct bpf_sock *sk;
	__u32 gso_size;
};

/* What bpf_tcp_sock() returns. data_segs_in and data_segs_out count segments
 * with payload since the connection was made, by which is_first() tells whether a
 * segment is the first. */
struct bpf_tcp_sock {
	__u32 snd_cwnd, srtt_us, rtt_min, snd_ssthresh, rcv_nxt, snd_nxt, snd_una, mss_cache;
	__u32 ecn_flags, rate_delivered, rate_interval_us, packets_out, retrans_out, total_retrans;
	__u32 segs_in, data_segs_in, segs_out, data_segs_out;
};

#include <bpf/bpf_helpers.h>

#define always static __always_inline

/* A function that the verifier checks once, for any arguments, rather than
 * again at each call: what is checked adds up instead of multiplying. Pointers
 * may be null as far as it knows. */
#define apart __attribute__((noinline))
