/* From the packet to the TCP payload: IPv4, IPv6 with extension headers. */
#pragma once
#include "maps.h"

struct packet {
	__u32 off, end; /* of the payload in the packet */
	__u32 seq;
	__u8 fin, syn, reason, pad;
	struct endpoints ends; /* as seen from the sender */
};

#define P_IP 0x0008   /* 0x0800 in network order */
#define P_IP6 0xdd86  /* 0x86dd */
#define TCP 6

struct ip4 {
	__u8 version_length, tos;
	__u16 total_length, id, fragment;
	__u8 ttl, protocol;
	__u16 checksum;
	__u8 source[4], destination[4];
};

struct ip6 {
	__u32 flow;
	__u16 payload_length;
	__u8 next, hops;
	__u8 source[16], destination[16];
};

struct tcp {
	__u16 source, destination;
	__u32 seq, ack;
	__u8 offset, flags;
	__u16 window, checksum, urgent;
};

always __u32 parse_ip4(struct __sk_buff *skb, struct packet *p)
{
	struct ip4 ip;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
		return R_UNREADABLE;
	if (ip.protocol != TCP)
		return R_NOT_TCP;
	if (ip.fragment & 0xff3f) /* more fragments, or an offset */
		return R_FRAGMENT;
	p->off = (ip.version_length & 15) * 4;
	*(__u32 *)p->ends.local = *(__u32 *)ip.source;
	*(__u32 *)p->ends.peer = *(__u32 *)ip.destination;
	p->ends.version = 4;
	return 0;
}

always __u32 parse_ip6(struct __sk_buff *skb, struct packet *p)
{
	struct ip6 ip;
	__u32 next, off = sizeof(ip);
	__u8 extension[2];

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
		return R_UNREADABLE;
	next = ip.next;
	for (int i = 0; i < 6; i++) {
		if (next == TCP)
			break;
		if (next == 44)
			return R_FRAGMENT;
		if (next != 0 && next != 43 && next != 60) /* hop-by-hop (jumbo segments), routing, destination */
			return R_NOT_TCP;
		if (bpf_skb_load_bytes(skb, off, extension, 2))
			return R_UNREADABLE;
		next = extension[0];
		off += 8 + extension[1] * 8;
	}
	if (next != TCP)
		return R_UNREADABLE;
	p->off = off;
	__builtin_memcpy(p->ends.local, ip.source, 16);
	__builtin_memcpy(p->ends.peer, ip.destination, 16);
	p->ends.version = 6;
	return 0;
}

/* Returns 0, or the reason why there is no TCP segment to follow. */
always __u32 parse(struct __sk_buff *skb, struct packet *p)
{
	struct tcp tcp;
	__u32 reason;

	if (skb->protocol == P_IP)
		reason = parse_ip4(skb, p);
	else if (skb->protocol == P_IP6)
		reason = parse_ip6(skb, p);
	else
		return R_NOT_TCP;
	if (reason)
		return reason;
	if (bpf_skb_load_bytes(skb, p->off, &tcp, sizeof(tcp)))
		return R_UNREADABLE;
	p->off += (tcp.offset >> 4) * 4;
	p->end = skb->len; /* not the IP length: that is 0 in large segments */
	p->seq = __builtin_bswap32(tcp.seq);
	p->syn = tcp.flags >> 1 & 1;
	p->seq += p->syn;
	p->fin = (tcp.flags & 5) != 0; /* FIN or RST */
	p->ends.local_port = __builtin_bswap16(tcp.source);
	p->ends.peer_port = __builtin_bswap16(tcp.destination);
	return 0;
}
