/* The kernel's ABI for programs that redirect connections, beside what
 * ../kernel.h has. Layouts and numbers are fixed by the kernel for ever. */
#pragma once
#include "../kernel.h"

enum { BPF_MAP_TYPE_LPM_TRIE = 11 };
enum { BPF_F_NO_PREALLOC = 1 };

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262
#define SOL_IP 0
#define SOL_IPV6 41
#define SO_ORIGINAL_DST 80 /* of both levels */
#define TCP_CLOSE 7
#define TCP_LISTEN 10
#define THIS_NETNS (-1L) /* BPF_F_CURRENT_NETNS */

/* bpf_sock_ops.op */
#define OP_STATE 10       /* BPF_SOCK_OPS_STATE_CB */
#define OP_TCP_CONNECT 3  /* BPF_SOCK_OPS_TCP_CONNECT_CB */
#define CB_STATE (1 << 2) /* BPF_SOCK_OPS_STATE_CB_FLAG */

/* What a program sees of a socket: the local end is src, the remote end dst,
 * whichever side connected. */
struct bpf_sock {
	__u32 bound_dev_if, family, type, protocol, mark, priority;
	__u32 src_ip4, src_ip6[4];
	__u32 src_port; /* host order */
	__be16 dst_port;
	__u16 : 16;
	__u32 dst_ip4, dst_ip6[4];
	__u32 state;
	__s32 rx_queue_mapping;
};

/* The context of connect and getpeername programs. A connect program may change
 * user_ip4, user_ip6 and user_port, which are the destination; a getpeername
 * program may change what the process is shown. sk is the socket. */
struct bpf_sock_addr {
	__u32 user_family;
	__u32 user_ip4;    /* network order, as all addresses */
	__u32 user_ip6[4];
	__u32 user_port;   /* network order */
	__u32 family, type, protocol;
	__u32 msg_src_ip4, msg_src_ip6[4];
	__attribute__((aligned(8))) struct bpf_sock *sk;
};

/* The context of a getsockopt program, which runs after the kernel has tried:
 * retval is the result so far, and a program that sets it to 0 answers in its
 * place. optval to optval_end is a copy of the value, at most a page. */
struct bpf_sockopt {
	__attribute__((aligned(8))) struct bpf_sock *sk;
	__attribute__((aligned(8))) void *optval;
	__attribute__((aligned(8))) void *optval_end;
	__s32 level, optname, optlen, retval;
};

/* The context of a sock_ops program. op says which event it is called for; events
 * other than connects must be asked for by bpf_sock_ops_cb_flags. */
struct bpf_sock_ops {
	__u32 op;
	__u32 args[4];
	__u32 family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4];
	__u32 remote_port; /* network order, in the upper half of a little endian word */
	__u32 local_port;  /* host order */
	__u32 is_fullsock, snd_cwnd, srtt_us, bpf_sock_ops_cb_flags, state;
};

/* The key of bpf_sk_lookup_tcp(); the size that is passed tells the family. */
struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr, daddr;
			__be16 sport, dport;
		} ipv4;
		struct {
			__be32 saddr[4], daddr[4];
			__be16 sport, dport;
		} ipv6;
	};
};

#include <bpf/bpf_endian.h>
