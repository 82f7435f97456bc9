/* Reading a meta frame: of which dialect it is, whether it asks or answers,
 * pushes or pulls, and its timestamp. Only its first BUF bytes are needed. */
#pragma once
#include "out.h"

/* Reads a varint at p, of which 10 bytes can be read, and returns its length,
 * or 0 where it is longer than a 32-bit number's. */
always __u32 varint(const __u8 *p, __u32 *value)
{
	__u64 x = *(const __u64 *)p;

	*value = x & 0x7f;
	if (!(x & 0x80))
		return 1;
	*value |= x >> 1 & 0x7f << 7;
	if (!(x & 0x8000))
		return 2;
	*value |= x >> 2 & 0x7f << 14;
	if (!(x & 0x800000))
		return 3;
	*value |= x >> 3 & 0x7f << 21;
	if (!(x & 0x80000000))
		return 4;
	*value |= x >> 4 & 0xf0000000;
	if (!(x & 0x8000000000))
		return 5;
	/* a negative number takes 10 bytes, the last ones all ones */
	if ((x >> 40 & 0xffffff) == 0xffffff && (*(const __u16 *)(p + 8) == 0x01ff))
		return 10;
	return 0;
}

#define BIT(field) (1 << (field))
#define HEAD 1
#define BODY_FIELD 2
#define CONTROL 3
#define REQUEST 4
#define PUSH 5
#define SIMPLE_APP 6
#define TIMESTAMP 8
#define DATA_TYPE 9
#define PULL 12
#define LAST_FIELD 13

/* One protobuf field of PBMeta at r->at; 0 where there is none. Fields stand
 * in ascending order, as every protobuf library writes them. */
apart int dmlc_field(struct run *r, __u32 at, __u32 len)
{
	__u32 i, value, n, tag, bit;
	const __u8 *p;

	if (!r)
		return 0;
	i = r->at;
	p = r->bytes + ((at + i) & (2 * WINDOW - 1));
	tag = *p;
	if (tag < 8 || tag >= 8 * (LAST_FIELD + 1))
		return 0;
	bit = BIT(tag >> 3);
	if (r->seen >= bit)
		return 0;
	n = varint(p + 1, &value);
	if (!n)
		return 0;
	i += 1 + n;
	if (bit & (BIT(BODY_FIELD) | BIT(CONTROL) | BIT(DATA_TYPE))) {
		if ((tag & 7) != 2 || i > len || value > len - i)
			return 0;
		i += value;
	} else {
		if ((tag & 7) != 0)
			return 0;
		if (bit & (BIT(REQUEST) | BIT(PUSH) | BIT(SIMPLE_APP) | BIT(PULL)) && value > 1)
			return 0;
		if (bit == BIT(REQUEST))
			r->request = value;
		else if (bit == BIT(PUSH))
			r->push = value;
		else if (bit == BIT(SIMPLE_APP))
			r->data = !value;
		else if (bit == BIT(TIMESTAMP))
			r->timestamp = value;
	}
	r->seen |= bit;
	r->at = i;
	return 1;
}

always int judge_dmlc(struct run *r, __u32 at, __u32 have, __u32 len)
{
	r->at = 0;
	r->seen = 0;
	r->data = 1;
	for (int f = 0; f < LAST_FIELD; f++) {
		forget();
		if (r->at >= have || (have < len && r->at + 11 > have))
			break;
		if (!dmlc_field(r, at, len))
			return 0;
	}
	forget();
	if (r->at > len)
		return 0;
	if (r->seen & (BIT(BODY_FIELD) | BIT(CONTROL)))
		r->data = 0;
	if (r->at < len) /* the rest is beyond BUF: believe it after a long field */
		return have < len && r->at + 11 > have;
	return (r->seen & (BIT(REQUEST) | BIT(PUSH))) == (BIT(REQUEST) | BIT(PUSH));
}

/* bytedance/ps-lite's RawMeta, a C structure of 112 bytes on 64-bit machines,
 * followed by body, data types and nodes of 552 bytes. */
#define BYTEPS_META 112
#define BYTEPS_NODE 552

always __u32 word(const __u8 *p, __u32 at)
{
	return *(const __u32 *)(p + at);
}

always int judge_byteps(struct run *r, __u32 at, __u32 have, __u32 len)
{
	const __u8 *p = r->bytes + (at & (2 * WINDOW - 1));
	__u32 body, types, nodes, cmd;

	if (have < BYTEPS_META)
		return 0;
	body = word(p, 4);
	cmd = word(p, 8);
	nodes = word(p, 12);
	types = word(p, 44);
	if (body > len || types > 16 || nodes > 1 << 20 || cmd > 31)
		return 0;
	if ((__u64)BYTEPS_META + body + 4 * types + (__u64)BYTEPS_NODE * nodes != len)
		return 0;
	if (p[32] > 1 || p[68] > 1 || p[69] > 1)
		return 0;
	r->request = p[32];
	r->timestamp = word(p, 40);
	r->push = p[68];
	r->data = !cmd && !p[69] && !body;
	return 1;
}

/* Judges the meta frame of len bytes of which the first have (all, or BUF)
 * are at r->bytes + at, and fills r->request and so on. */
apart int judge(struct run *r, __u32 at, __u32 have, __u32 len)
{
	if (!r)
		return 0;
	r->request = r->push = r->data = 0;
	r->timestamp = 0;
	r->dialect = UNKNOWN;
	if (len >= 8 && judge_dmlc(r, at, have, len))
		r->dialect = DMLC;
	else if (judge_byteps(r, at, have, len))
		r->dialect = BYTEPS;
	return 0;
}

/* Sampling.Includes in sampling.go says the same. */
always __u32 window_hash(__u32 window)
{
	__u32 h = (window + 0x7f4a7c15) * 0x9e3779b1u;

	h ^= h >> 15;
	h *= 0x85ebca77u;
	return h ^ h >> 13;
}

/* Whether one in n takes this window. Of each n that follow each other exactly
 * one is taken, as far as n is a power of two, and which is left to chance, so
 * that no rhythm of the job falls in with it. What a sparser sampling takes, a
 * denser one takes too. */
apart int taken(__u32 window, __u32 n)
{
	for (__u32 i = 0; i < 32; i++) {
		if (n <= 1 || n & 1)
			break;
		if ((window ^ window_hash((window >> 1) + i * 0x51ed270bu)) & 1)
			return 0;
		window >>= 1;
		n >>= 1;
	}
	return n <= 1 || window_hash(window) % n == 0;
}

enum { WANT_KEYS = 1, WANT_LENS = 4 }; /* 1 << frame - 1 */

enum { META_ALONE = 2 }; /* of want_meta: no END is written */

/* Decides what is copied of the message whose meta was judged. */
always void choose(struct run *r, struct stream *s)
{
	struct config *c = &r->config;
	__u32 window, size = c->window, one_in = c->one_in, by = 1;
	struct rate *own;

	s->want = s->sampled_now = 0;
	s->want_meta = 1;
	if (!r->data || !size)
		return;
	if (timing(c, r->key)) {
		s->want_meta = META_ALONE;
		if (r->request) { /* its sender's side times it */
			s->want_meta = 0;
			return;
		}
	}
	own = bpf_map_lookup_elem(&rates, &r->key);
	if (own && own->window) {
		size = own->window;
		one_in = 1u << (own->shift & 31);
		by = 2 + (own->shift & 31);
	}
	window = r->timestamp / size;
	if (!taken(window, one_in) || s->want_meta == META_ALONE)
		return;
	s->sampled_now = by;
	s->sampled++;
	s->want = WANT_LENS;
	if (r->request || c->answer_keys)
		s->want |= WANT_KEYS;
}
