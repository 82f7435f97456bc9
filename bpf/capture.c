//go:build ignore
/* The capture programs for cgroup_skb/egress and ingress. Both let every
 * packet pass.
 *
 * Cost: see the figures in README.md, measured by BenchmarkCost. */
#include "packet.h"
#include "tracker.h"

char __license[] SEC("license") = "Dual MIT/GPL";

/* Set for BPF_PROG_TEST_RUN only, where every packet comes with a new socket:
 * streams are then told apart by address, and a SYN begins one. */
volatile const __u32 key_by_address = 0;

#define PASS 1
#define MAX_VISITS 65536 /* steps of the tracker in one segment, about two a frame */
#define LATE_TRIES 256   /* segments searched before a stream counts as foreign */

always __u64 address_key(struct packet *p)
{
	__u32 *l = (__u32 *)p->ends.local, *r = (__u32 *)p->ends.peer;
	__u64 h = l[0] ^ l[3] ^ (__u64)(r[0] ^ r[3]) << 16;

	return (h << 32 | (__u32)p->ends.local_port << 16 | p->ends.peer_port) << 1;
}

/* Whether this segment holds the first bytes of its direction. */
always int is_first(struct __sk_buff *skb, struct packet *p, __u32 direction)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tcp;

	if (key_by_address)
		return p->syn;
	if (!sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 0;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return 0;
	if (direction == INGRESS)
		return tcp->data_segs_in == 0;
	return tcp->data_segs_out <= (skb->gso_segs > 1 ? skb->gso_segs : 1);
}

/* Whether a stream in the foreigners' map is examined again: every 64 segments
 * if it is late. */
always int foreign_again(struct foreign *f, __u32 len)
{
	__u32 reason = f->reason;

	f->segments++;
	if (f->late && f->segments % 64 == 0)
		return 1;
	count(reason, len);
	return 0;
}

always void note_foreign(__u64 key, __u32 reason, __u8 late)
{
	struct foreign f = { .reason = reason, .late = late };

	bpf_map_update_elem(&foreigners, &key, &f, BPF_ANY);
}

/* Makes the entry of a stream seen for the first time. */
always struct stream *new_stream(struct __sk_buff *skb, struct run *r, struct packet *p, __u32 direction)
{
	struct foreign *f = bpf_map_lookup_elem(&foreigners, &r->key);
	struct stream *s = &r->fresh;
	__u32 len = p->end - p->off;
	__u8 first_byte = 0;

	if (f && !foreign_again(f, len))
		return 0;
	s->late = !is_first(skb, p, direction);
	s->phase = s->late ? UNSYNCED : GREETING;
	s->tries = f ? LATE_TRIES : 0;
	s->next_seq = p->seq;
	s->rests = r->config.rests;
	s->busy = 1;
	if (!s->late) {
		bpf_skb_load_bytes(skb, p->off, &first_byte, 1);
		if (first_byte != 0xff) {
			note_foreign(r->key, R_FOREIGN_PROTOCOL, 0);
			count(R_FOREIGN_PROTOCOL, len);
			return 0;
		}
	}
	s->ends = p->ends;
	if (direction == INGRESS) {
		__builtin_memcpy(s->ends.local, p->ends.peer, 16);
		__builtin_memcpy(s->ends.peer, p->ends.local, 16);
		s->ends.local_port = p->ends.peer_port;
		s->ends.peer_port = p->ends.local_port;
	}
	if (bpf_map_update_elem(&streams, &r->key, s, BPF_NOEXIST)) {
		count_lost(&r->config, r->key, R_STREAM_TABLE_FULL, len);
		return 0;
	}
	return bpf_map_lookup_elem(&streams, &r->key);
}

/* Bytes that never passed the program. Inside a frame that is not a meta the
 * tracker steps over them; anywhere else the boundary is lost. */
always void cross_gap(struct run *r, struct stream *s, __u32 gap)
{
	if (by_rest(r, s)) {
		/* what was seen of the message in progress counts as rested, too */
		if (s->phase != UNSYNCED && !s->tentative) {
			s->rested += s->header_have;
			if (s->frame || (s->kind != COMMAND && s->phase != HEADER))
				s->rested += s->message_bytes - s->remaining;
		}
		s->rested += gap;
		count(R_RESTED, gap);
		goto lost;
	}
	s->gap_bytes += gap;
	if (s->phase == BODY && s->kind > META && s->remaining > gap && !s->tentative) {
		s->remaining -= gap;
		s->incomplete = 1;
		count(R_STEPPED_GAP, gap);
		return;
	}
	count_lost(&r->config, r->key, R_GAP, gap);
	s->missed += gap;
lost:
	if (s->phase == GREETING)
		s->late = 1;
	if (s->phase != UNSYNCED && !s->tentative && s->opened)
		put_event(r, s, UNSYNC, s->missed);
	s->phase = UNSYNCED;
	s->tentative = s->frame = s->header_have = s->enveloped = 0;
}

/* Aligns the segment with what was seen before; 0 if all of it was. */
always int align(struct run *r, struct stream *s, struct packet *p)
{
	__s32 delta = p->seq - s->next_seq;
	__u32 len = p->end - p->off;

	s->segments++;
	if (delta < 0) {
		__u32 old = -delta < len ? -delta : len;

		s->retransmitted += old;
		count(R_RETRANSMITTED, old);
		if (old == len)
			return 0;
		p->off += old;
		len -= old;
	} else if (delta > 0) {
		cross_gap(r, s, delta);
	} else if (s->phase != UNSYNCED && !s->tentative) {
		s->rests = r->config.rests; /* nothing passed in the rest, if there was one */
	}
	s->bytes += len;
	s->next_seq = p->seq + (p->end - p->off) + (delta < 0 ? -delta : 0);
	return 1;
}

always void close_stream(struct run *r, struct stream *s)
{
	if (!s->closed && s->opened)
		put_event(r, s, CLOSE, s->bytes);
	s->closed = 1;
}

/* Finds or makes the stream and claims it and a run buffer; 0 where there is
 * nothing to do. */
always struct run *begin(struct __sk_buff *skb, struct packet *p, struct stream **stream, __u32 direction)
{
	__u32 reason = parse(skb, p), zero = 0;
	struct config *c;
	struct stream *s;
	struct run *r;
	__u64 key;

	if (reason) {
		count(reason, skb->len);
		return 0;
	}
	if (p->off >= p->end && !p->fin)
		return 0;
	if (p->off < p->end)
		count(R_SEGMENTS, p->end - p->off);
	key = key_by_address ? address_key(p) : bpf_get_socket_cookie(skb) << 1;
	if (!key) {
		count(R_NO_SOCKET, p->end - p->off);
		return 0;
	}
	key |= direction;
	s = bpf_map_lookup_elem(&streams, &key);
	if (!s && p->off >= p->end)
		return 0;
	c = bpf_map_lookup_elem(&settings, &zero);
	r = claim();
	if (!r || !c) {
		if (c)
			count_lost(c, key, R_SCRATCH_BUSY, p->end - p->off);
		return 0;
	}
	r->key = key;
	r->config = *c;
	if (!s) {
		s = new_stream(skb, r, p, direction);
	} else if (__sync_val_compare_and_swap(&s->busy, 0, 1)) {
		count_lost(&r->config, key, R_STREAM_BUSY, p->end - p->off);
		s = 0;
	}
	if (!s) {
		r->busy = 0;
		return 0;
	}
	r->pos = sizeof(struct batch);
	r->start_message = s->messages;
	r->window = r->window_end = r->found = r->scans = r->leave = r->visits = 0;
	r->off = r->end = 0;
	if (p->off < p->end && align(r, s, p)) {
		r->off = p->off;
		r->end = p->end;
	}
	/* what passed in a rest before the end is known by its number */
	if (p->fin && p->off >= p->end && by_rest(r, s) && (__s32)(p->seq - s->next_seq) > 0) {
		cross_gap(r, s, p->seq - s->next_seq);
		s->next_seq = p->seq;
	}
	r->missing_from = r->off;
	r->closing = p->fin;
	*stream = s;
	return r;
}

/* Accounts for what the run missed, writes its batch, releases its claims. */
apart int finish(struct run *r, struct stream *s)
{
	__u32 leave, late;
	__u64 key;

	if (!r || !s)
		return 0;
	leave = r->leave;
	late = s->late;
	key = r->key;
	if (!leave && r->off < r->end) {
		count_lost(&r->config, r->key, R_TOO_MANY_FRAMES, r->end - r->off);
		if (!s->tentative && s->phase != UNSYNCED)
			r->missing_from = r->off;
		s->phase = UNSYNCED;
		s->tentative = s->frame = s->header_have = s->enveloped = 0;
	}
	if ((s->phase == UNSYNCED || s->tentative) && r->end > r->missing_from) {
		if (by_rest(r, s)) {
			s->rested += r->end - r->missing_from;
			count(R_RESTED, r->end - r->missing_from);
		} else {
			s->missed += r->end - r->missing_from;
			count_lost(&r->config, r->key, R_UNSYNCED, r->end - r->missing_from);
		}
		if (!s->dialect && s->late && !s->tentative && ++s->tries > LATE_TRIES)
			leave = R_FOREIGN_UNKNOWN + 1;
	}
	if (leave && s->opened)
		put_event(r, s, FOREIGN, 0);
	if (r->closing)
		close_stream(r, s);
	flush(r, s);
	s->busy = 0;
	r->busy = 0;
	if (leave) {
		count(leave - 1, r->end - r->missing_from);
		note_foreign(key, leave - 1, late);
		bpf_map_delete_elem(&streams, &key);
	}
	return 0;
}

/* Loops within loops, each checked apart, so that a segment of tens of
 * thousands of frames is followed to its end without bpf_loop (Linux 5.17), and
 * the verifier, which walks through each loop, is soon done. */
#define VISITS 40

apart int visit(struct __sk_buff *skb, struct run *r, struct stream *s)
{
	if (!r || !s)
		return STOP;
	for (int i = 0; i < VISITS; i++)
		if (step(skb, r, s))
			return STOP;
	return GO_ON;
}

apart int visits(struct __sk_buff *skb, struct run *r, struct stream *s)
{
	for (int i = 0; i < VISITS; i++)
		if (visit(skb, r, s))
			return STOP;
	return GO_ON;
}

always int skip_ingress(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct config *c = bpf_map_lookup_elem(&settings, &zero);

	return c && c->skip_loopback_ingress && skb->ifindex == 1; /* lo is 1 in every namespace */
}

/* Whether the segment may pass unseen in a rest: the rate of what the socket sends
 * says so, for both directions, since one may have acks only. The ends of connections may not:
 * byte 13 of the TCP header has the flags, and headers have no options below it. */
always int rests(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct config *c = bpf_map_lookup_elem(&settings, &zero);
	struct rate *own;
	__u8 flags = 0;
	__u64 key;

	if (!c || !(c->rests & 1))
		return 0;
	if (key_by_address) {
		struct packet p = {};

		if (parse(skb, &p))
			return 0;
		key = address_key(&p);
	} else {
		key = bpf_get_socket_cookie(skb) << 1;
	}
	own = bpf_map_lookup_elem(&rates, &key);
	if (!own || !own->may_rest)
		return 0;
	return !bpf_skb_load_bytes(skb, skb->protocol == P_IP ? 33 : 53, &flags, 1) && !(flags & 5);
}

always int watch(struct __sk_buff *skb, __u32 direction)
{
	struct packet p = {};
	struct stream *s;
	struct run *r;

	if (rests(skb))
		return PASS;
	r = begin(skb, &p, &s, direction);
	if (!r)
		return PASS;
	for (int i = 0; i <= MAX_VISITS / VISITS / VISITS; i++)
		if (visits(skb, r, s))
			break;
	finish(r, s);
	return PASS;
}

SEC("cgroup_skb/egress")
int watch_egress(struct __sk_buff *skb)
{
	return watch(skb, EGRESS);
}

SEC("cgroup_skb/ingress")
int watch_ingress(struct __sk_buff *skb)
{
	return skip_ingress(skb) ? PASS : watch(skb, INGRESS);
}
