//go:build ignore
/* The redirecting programs: connects of a cgroup's processes go to the
 * proxy's listener in their own network namespace, the proxy can ask for the
 * destination they meant, and they themselves see no other.
 *
 *   redirect4, redirect6        choose, remember by socket cookie, rewrite
 *   note_connects (sock_ops)    file what was remembered under the client's
 *                               address before its SYN leaves; forget what
 *                               has closed
 *   original_destination        answers SO_ORIGINAL_DST on accepted sockets
 *   peer4, peer6                show the client the destination it meant
 */
#include "maps.h"

char __license[] SEC("license") = "Dual MIT/GPL";

/* Set by the loader: the cgroup that this copy of the programs is attached
 * to, and what connect() fails with, where the kernel lets a program say. */
volatile const __u64 group_id = 0;
volatile const __u32 refuse_with = 0;

#define PASS 1
#define REFUSE 0

always struct address mapped(__be32 ip4)
{
	struct address a = {{0, 0, bpf_htonl(0xffff), ip4}};

	return a;
}

always int is_mapped(const struct address *a)
{
	return !a->w[0] && !a->w[1] && a->w[2] == bpf_htonl(0xffff);
}

/* Whether connects to it stay on loopback; those to no address do. */
always int is_loopback(const struct address *a)
{
	if (is_mapped(a))
		return (a->w[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000) || !a->w[3];
	return !a->w[0] && !a->w[1] && !a->w[2] && (a->w[3] == bpf_htonl(1) || !a->w[3]);
}

always int same(const struct address *a, const struct address *b)
{
	return a->w[0] == b->w[0] && a->w[1] == b->w[1] && a->w[2] == b->w[2] && a->w[3] == b->w[3];
}

/* The address of the proxy's listeners. */
always struct address proxy_address(int v4)
{
	struct address six = {{0, 0, 0, bpf_htonl(1)}};

	return v4 ? mapped(bpf_htonl(0x7f000001)) : six;
}

always int is_excluded(const struct address *to, __be16 port)
{
	struct exclusion e = {.prefix = 8 * (sizeof(e.port) + sizeof(e.address))};

	__builtin_memcpy(e.address, to, sizeof(e.address));
	if (bpf_map_lookup_elem(&exclusions, &e))
		return 1;
	e.port = port;
	return bpf_map_lookup_elem(&exclusions, &e) != 0;
}

/* Whether a socket of the proxy's, known by its mark, listens there now. */
always int listens(struct bpf_sock_addr *ctx, int v4, __be16 port, __u32 mark)
{
	struct bpf_sock_tuple t = {};
	struct bpf_sock *sk;
	int found;

	if (v4) {
		t.ipv4.saddr = t.ipv4.daddr = bpf_htonl(0x7f000001);
		t.ipv4.dport = port;
		sk = bpf_sk_lookup_tcp(ctx, &t, sizeof(t.ipv4), THIS_NETNS, 0);
	} else {
		t.ipv6.saddr[3] = t.ipv6.daddr[3] = bpf_htonl(1);
		t.ipv6.dport = port;
		sk = bpf_sk_lookup_tcp(ctx, &t, sizeof(t.ipv6), THIS_NETNS, 0);
	}
	if (!sk)
		return 0;
	found = sk->state == TCP_LISTEN && sk->mark == mark;
	bpf_sk_release(sk);
	return found;
}

/* Whether the connect must not go to the proxy, and why. */
always int is_left_alone(struct bpf_sock_addr *ctx, const struct settings *s, const struct group *g,
			 const struct address *to, __be16 port, __be16 own_port, __u32 *why)
{
	struct bpf_sock *sk = ctx->sk;
	struct address own = proxy_address(is_mapped(to));

	*why = R_EXEMPT;
	if (sk && sk->mark == s->mark)
		return 1;
	if (s->exempt_groups) {
		__u64 id = bpf_get_current_cgroup_id();
		struct group *current = bpf_map_lookup_elem(&groups, &id);

		if (current && current->flags & EXEMPT)
			return 1;
	}
	*why = R_OWN_LISTENER;
	if (own_port && port == own_port && same(to, &own))
		return 1;
	*why = R_LOOPBACK;
	if (!(g->flags & LOOPBACK) && is_loopback(to))
		return 1;
	*why = R_EXCLUDED;
	return is_excluded(to, port);
}

always int refuse(__u32 why)
{
	count(why);
	if (refuse_with)
		bpf_set_retval(-(int)refuse_with);
	return REFUSE;
}

always int fail(const struct group *g, __u32 direct, __u32 refused)
{
	if (g->flags & FAIL_CLOSED)
		return refuse(refused);
	count(direct);
	return PASS;
}

always int connect(struct bpf_sock_addr *ctx, const struct address *to)
{
	struct place place = {.netns = bpf_get_netns_cookie(ctx), .group = group_id};
	struct remembered r = {};
	struct settings *s;
	struct group *g;
	struct listener *l;
	struct bpf_sock *sk;
	__be16 port = ctx->user_port, own_port;
	__u64 cookie;
	__u32 zero = 0, why;
	int v4 = is_mapped(to);

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_MPTCP) {
		count(R_NOT_TCP);
		return PASS;
	}
	g = bpf_map_lookup_elem(&groups, &place.group);
	s = bpf_map_lookup_elem(&settings, &zero);
	if (!g || !s) {
		count(R_NO_GROUP);
		return PASS;
	}
	l = bpf_map_lookup_elem(&listeners, &place);
	own_port = !l ? 0 : v4 ? l->port4 : l->port6;
	if (is_left_alone(ctx, s, g, to, port, own_port, &why)) {
		count(why);
		return PASS;
	}
	if ((g->flags & (SPARE | FAIL_CLOSED)) == SPARE) {
		struct way way = {.group = group_id, .to = *to, .to_port = port};
		__u64 *until = bpf_map_lookup_elem(&ways, &way);

		if (until && *until > bpf_ktime_get_ns())
			return refuse(R_REFUSED_HELD);
		if (!until || *until) {
			count(R_SPARED);
			return PASS;
		}
	}
	/* The kernel asks for the subflow, which is a TCP socket. Should it ask
	 * for the whole, that could not be recognised later. */
	if (ctx->protocol == IPPROTO_MPTCP)
		return fail(g, R_MPTCP, R_REFUSED_MPTCP);
	if (!own_port)
		return fail(g, R_NO_LISTENER, R_REFUSED_NO_LISTENER);
	sk = ctx->sk;
	if (sk && sk->bound_dev_if)
		return fail(g, R_BOUND_DEVICE, R_REFUSED_BOUND_DEVICE);
	if (!listens(ctx, v4, own_port, s->mark))
		return fail(g, R_LISTENER_GONE, R_REFUSED_LISTENER_GONE);

	r.client.netns = place.netns;
	r.client.listener = bpf_ntohs(own_port);
	r.to = *to;
	r.to_port = port;
	r.v4 = v4;
	cookie = bpf_get_socket_cookie(ctx);
	if (bpf_map_update_elem(&sockets, &cookie, &r, BPF_ANY))
		return fail(g, R_NOT_REMEMBERED, R_REFUSED_NOT_REMEMBERED);
	ctx->user_port = own_port;
	count(R_REDIRECTED);
	return PASS + 1;
}

SEC("cgroup/connect4")
int redirect4(struct bpf_sock_addr *ctx)
{
	struct address to = mapped(ctx->user_ip4);
	int verdict = connect(ctx, &to);

	if (verdict <= PASS)
		return verdict;
	ctx->user_ip4 = bpf_htonl(0x7f000001);
	return PASS;
}

SEC("cgroup/connect6")
int redirect6(struct bpf_sock_addr *ctx)
{
	struct address to = {{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
	int verdict = connect(ctx, &to);

	if (verdict <= PASS)
		return verdict;
	to = proxy_address(is_mapped(&to));
	ctx->user_ip6[0] = to.w[0];
	ctx->user_ip6[1] = to.w[1];
	ctx->user_ip6[2] = to.w[2];
	ctx->user_ip6[3] = to.w[3];
	return PASS;
}

/* Called before the SYN is sent, when the socket has its own address. */
always void file(struct bpf_sock_ops *ctx, struct remembered *r, __u64 cookie)
{
	struct address six = {{ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3]}};
	struct destination d = {};

	/* A socket that connects again, and is not redirected this time, has an
	 * entry of last time. */
	if ((ctx->remote_port >> 16) != bpf_htons(r->client.listener))
		return;
	r->client.address = r->v4 ? mapped(ctx->local_ip4) : six;
	r->client.port = ctx->local_port;
	d.to = r->to;
	d.to_port = r->to_port;
	d.cookie = cookie;
	if (bpf_map_update_elem(&destinations, &r->client, &d, BPF_ANY)) {
		count(R_FORGOTTEN);
		return;
	}
	r->sent = 1;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | CB_STATE);
}

/* An entry that the proxy has not asked for stays: the client may have sent all
 * its data and closed before its connection was accepted. */
always void forget(struct remembered *r, __u64 cookie)
{
	struct destination *d;

	if (r->sent) {
		d = bpf_map_lookup_elem(&destinations, &r->client);
		if (d && d->asked && d->cookie == cookie)
			bpf_map_delete_elem(&destinations, &r->client);
	}
	bpf_map_update_elem(&ended, &cookie, r, BPF_ANY);
	bpf_map_delete_elem(&sockets, &cookie);
}

SEC("sockops")
int note_connects(struct bpf_sock_ops *ctx)
{
	__u64 cookie;
	struct remembered *r;

	if (ctx->op != OP_TCP_CONNECT && !(ctx->op == OP_STATE && ctx->args[1] == TCP_CLOSE))
		return PASS;
	cookie = bpf_get_socket_cookie(ctx);
	r = bpf_map_lookup_elem(&sockets, &cookie);
	if (!r)
		return PASS;
	if (ctx->op == OP_TCP_CONNECT)
		file(ctx, r, cookie);
	else
		forget(r, cookie);
	return PASS;
}

struct sockaddr4 {
	__u16 family;
	__be16 port;
	__be32 address;
	__u64 zero;
};

struct sockaddr6 {
	__u16 family;
	__be16 port;
	__be32 flow;
	struct address address;
	__u32 scope;
};

always int answer4(struct bpf_sockopt *ctx, const struct destination *d)
{
	struct sockaddr4 *a = ctx->optval;

	if ((void *)(a + 1) > ctx->optval_end)
		return 0;
	a->family = AF_INET;
	a->port = d->to_port;
	a->address = d->to.w[3];
	a->zero = 0;
	ctx->optlen = sizeof(*a);
	return 1;
}

always int answer6(struct bpf_sockopt *ctx, const struct destination *d)
{
	struct sockaddr6 *a = ctx->optval;

	if ((void *)(a + 1) > ctx->optval_end)
		return 0;
	a->family = AF_INET6;
	a->port = d->to_port;
	a->flow = 0;
	a->address = d->to;
	a->scope = 0;
	ctx->optlen = sizeof(*a);
	return 1;
}

/* Runs for every getsockopt() of the cgroup in which the listeners were
 * opened: a socket that is accepted belongs to its listener's cgroup, whoever
 * accepts it. */
SEC("cgroup/getsockopt")
int original_destination(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct client c = {};
	struct destination *d;
	int v4;

	if (ctx->optname != SO_ORIGINAL_DST || (ctx->level != SOL_IP && ctx->level != SOL_IPV6))
		goto leave;
	if (!sk || sk->protocol != IPPROTO_TCP)
		goto leave;
	v4 = sk->family == AF_INET;
	if (v4 != (ctx->level == SOL_IP))
		goto leave;
	c.netns = bpf_get_netns_cookie(ctx);
	c.port = bpf_ntohs(sk->dst_port);
	c.listener = sk->src_port;
	if (v4) {
		c.address = mapped(sk->dst_ip4);
	} else {
		c.address.w[0] = sk->dst_ip6[0];
		c.address.w[1] = sk->dst_ip6[1];
		c.address.w[2] = sk->dst_ip6[2];
		c.address.w[3] = sk->dst_ip6[3];
	}
	d = bpf_map_lookup_elem(&destinations, &c);
	if (!d || !(v4 ? answer4(ctx, d) : answer6(ctx, d))) {
		count(R_UNKNOWN);
		goto leave;
	}
	d->asked = 1;
	ctx->retval = 0;
	count(R_ANSWERED);
	return PASS;
leave:
	/* The kernel hands out at most a page of the value to programs, and
	 * takes 0 for 'as it was'. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	return PASS;
}

/* The destination that the socket's process asked for, if it was redirected to
 * the port that getpeername has found. */
always struct remembered *meant(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct remembered *r = bpf_map_lookup_elem(&sockets, &cookie);

	if (!r || (__be16)ctx->user_port != bpf_htons(r->client.listener))
		return 0;
	return r;
}

SEC("cgroup/getpeername4")
int peer4(struct bpf_sock_addr *ctx)
{
	struct remembered *r = meant(ctx);

	if (r && r->v4 && ctx->user_ip4 == bpf_htonl(0x7f000001)) {
		ctx->user_ip4 = r->to.w[3];
		ctx->user_port = r->to_port;
	}
	return PASS;
}

SEC("cgroup/getpeername6")
int peer6(struct bpf_sock_addr *ctx)
{
	struct remembered *r = meant(ctx);
	struct address shown = {{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
	struct address own;

	if (!r)
		return PASS;
	own = proxy_address(r->v4);
	if (!same(&shown, &own))
		return PASS;
	ctx->user_ip6[0] = r->to.w[0];
	ctx->user_ip6[1] = r->to.w[1];
	ctx->user_ip6[2] = r->to.w[2];
	ctx->user_ip6[3] = r->to.w[3];
	ctx->user_port = r->to_port;
	return PASS;
}
