// This file authorizes calls to a planner and identifies callers.
//
// A caller is identified by its certificate, whose roles count, or as a user of this host. A
// call then reaches the planner's services or fails with PERMISSION_DENIED and the missing
// right. Agents and proxies may speak only for the hosts that their certificates name.
// Operators may change things, and each change is logged with its author. [Policy] provides the
// interceptors of the gRPC server.

package control

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/identity"
)

// A rule says who may call a method.
type rule struct {
	roles []identity.Role
	// host: the caller must be entitled to speak for the host that its messages name.
	host bool
	// change: calls are logged with their author.
	change bool
	// read: other users of the planner's host may call it too.
	read bool
}

var (
	read    = rule{roles: identity.Roles, read: true}
	operate = rule{roles: []identity.Role{identity.OperatorRole}, change: true}
	ofAgent = rule{roles: []identity.Role{identity.AgentRole, identity.PlannerRole}, host: true}
	ofProxy = rule{roles: []identity.Role{identity.ProxyRole, identity.PlannerRole}, host: true}
)

// rules cover all methods; a call to any other is refused, so a new method is closed until it
// has a rule. The planner's own certificate may do what agents and proxies may, since psidecar
// up is all three in one process.
var rules = map[string]rule{
	"/psidecar.planner.v1.Planner/Report":  ofAgent,
	"/psidecar.planner.v1.Plans/Watch":     ofProxy,
	"/psidecar.planner.v1.Plans/Record":    ofProxy,
	"/psidecar.planner.v1.Plans/Progress":  ofProxy,
	"/psidecar.planner.v1.Plans/Teach":     ofProxy,
	"/psidecar.planner.v1.Plans/Describe":  read,
	"/psidecar.planner.v1.Plans/Act":       operate,
	"/psidecar.planner.v1.Codecs/Follow":   ofProxy,
	"/psidecar.planner.v1.Codecs/Set":      operate,
	"/psidecar.planner.v1.Codecs/SetSums":  operate,
	"/psidecar.planner.v1.Codecs/Try":      operate,
	"/psidecar.planner.v1.Codecs/Describe": read,
}

// Local identifies a caller on this host without a certificate. It is the AuthInfo of its
// connection.
type Local struct {
	credentials.CommonAuthInfo
	UID int // -1: unknown
	// Trusted says that this user may do everything; others may only read.
	Trusted bool
	// Why says why the user is not trusted, or why it is unknown.
	Why string
}

// AuthType implements credentials.AuthInfo.
func (Local) AuthType() string { return "local" }

// A Policy is the access policy of a planner. Its exported fields must not change once it is in
// use. Its methods may be called from any goroutine.
type Policy struct {
	// Rules give roles to certificates that do not name any themselves.
	Rules []identity.RoleRule
	// Open lets callers without a certificate do everything (--insecure).
	Open bool
	Log  *slog.Logger // nil: the default

	// By reason.
	refused [len(reasons)]atomic.Uint64
	changes atomic.Uint64
	crowded atomic.Pointer[func() uint64] // see Crowd
	warned  atomic.Int64                  // when a refusal was last logged, in seconds since 1970
}

// Reasons for refusing a caller.
const (
	unknownMethod = iota
	noIdentity
	noRole
	otherHost
	otherUser
	noHandshake
	silent
)

var reasons = [...]string{
	unknownMethod: "unknown_method", noIdentity: "no_certificate", noRole: "role", otherHost: "host", otherUser: "user", noHandshake: "handshake", silent: "silent",
}

// caller is the identity of a caller, as far as rules need it.
type caller struct {
	who    string            // for logs and errors
	cert   *x509.Certificate // nil: none
	grants identity.Grants
	local  *Local // nil: not a user of this host
	open   bool   // no identity is required
}

// callerOf identifies the caller of a call from its connection.
func (p *Policy) callerOf(ctx context.Context) caller {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return caller{who: "unknown"}
	}
	c := caller{who: addressOf(from.Addr)}
	switch info := from.AuthInfo.(type) {
	case credentials.TLSInfo:
		if len(info.State.PeerCertificates) > 0 {
			c.cert = info.State.PeerCertificates[0]
			c.grants = identity.GrantsOf(c.cert, p.Rules...)
			c.who = fmt.Sprintf("%s (%s) at %s", identity.WhoIs(c.cert), c.grants, c.who)
		}
	case Local:
		c.local = &info
		if info.UID >= 0 {
			c.who = fmt.Sprintf("user %d at %s", info.UID, c.who)
		}
	default:
		c.open = p.Open
	}
	return c
}

func addressOf(a net.Addr) string {
	if a == nil || a.Network() == "unix" {
		return "the planner's unix socket"
	}
	return a.String()
}

// refuse counts and logs a refusal, and returns its error.
func (p *Policy) refuse(why int, method string, c *caller, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	p.note(why, "caller", c.who, "method", method, "error", text)
	return status.Error(codes.PermissionDenied, text)
}

// Failed records a connection whose handshake failed: its certificate is not valid, or it does
// not speak TLS.
func (p *Policy) Failed(from net.Addr, err error) { p.note(noHandshake, "caller", from, "error", err) }

// Crowd sets a function that counts connections which were reset, to make room, before they had
// identified themselves. They appear among the refused.
func (p *Policy) Crowd(count func() uint64) { p.crowded.Store(&count) }

// countOf returns the number of refusals for a reason.
func (p *Policy) countOf(why int) uint64 {
	if count := p.crowded.Load(); why == silent && count != nil {
		return (*count)()
	}
	return p.refused[why].Load()
}

// note counts a refusal and logs it, at most once a second as a warning.
func (p *Policy) note(why int, words ...any) {
	p.refused[why].Add(1)
	level := slog.LevelDebug
	if now := time.Now().Unix(); p.warned.Swap(now) != now { // once a second: a refused caller may retry for ever
		level = slog.LevelWarn
	}
	p.log().Log(context.Background(), level, "planner request refused", append(words, "reason", reasons[why])...)
}

func (p *Policy) log() *slog.Logger { return cmp.Or(p.Log, slog.Default()) }

// may decides about a call before its messages are read, and returns the rule of the method.
func (p *Policy) may(c *caller, method string) (rule, error) {
	r, ok := rules[method]
	short := method[strings.LastIndexByte(method, '/')+1:]
	switch {
	case !ok:
		return r, p.refuse(unknownMethod, method, c, "no role may call %s", method)
	case c.open:
		return r, nil
	case c.local != nil && (c.local.Trusted || r.read):
		return r, nil
	case c.local != nil:
		return r, p.refuse(otherUser, method, c, "%s: %s", short, c.local.Why)
	case c.cert == nil:
		return r, p.refuse(noIdentity, method, c, "%s requires a certificate (--planner-ca, --planner-cert, --planner-key)", short)
	}
	for _, wanted := range r.roles {
		if c.grants.Has(wanted) {
			return r, nil
		}
	}
	return r, p.refuse(noRole, method, c, "%s: %v", short, identity.MissingRole(c.cert, c.grants, r.roles[0], "the planner's --tls-role"))
}

// speaksFor decides whether a caller may speak for the host that a message names. Otherwise one
// host's agent could report for another, and move its keys.
func (p *Policy) speaksFor(c *caller, r rule, method string, message any) error {
	of, ok := message.(interface{ GetHost() string })
	if !r.host || !ok || c.open || c.local != nil {
		return nil
	}
	if c.grants.Has(identity.PlannerRole) || slices.ContainsFunc(r.roles, func(o identity.Role) bool { return c.grants.For(o, of.GetHost()) }) {
		return nil
	}
	return p.refuse(otherHost, method, c, "the certificate of %s has %s and is not valid for host %.300q: issue one for that name, or start the %s with the --host of its certificate",
		identity.WhoIs(c.cert), c.grants, of.GetHost(), r.roles[0])
}

// Unary is the interceptor of unary calls.
func (p *Policy) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	c := p.callerOf(ctx)
	r, err := p.may(&c, info.FullMethod)
	if err == nil {
		err = p.speaksFor(&c, r, info.FullMethod, request)
	}
	if err != nil {
		return nil, err
	}
	answer, err := handle(ctx, request)
	if r.change {
		p.changes.Add(1)
		p.log().Info("change", "by", c.who, "method", info.FullMethod, "request", brief(request), "error", err)
	}
	return answer, err
}

// brief returns a request as text of bounded length.
func brief(request any) string {
	text := fmt.Sprint(request)
	if len(text) > maxLogged {
		return text[:maxLogged] + "..."
	}
	return text
}

// maxLogged bounds the part of a request that is logged, in bytes.
const maxLogged = 1024

// Stream is the interceptor of streams. Each message is checked, not just the first: the host
// is named in every one.
func (p *Policy) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	c := p.callerOf(stream.Context())
	r, err := p.may(&c, info.FullMethod)
	if err != nil {
		return err
	}
	return handle(service, &checked{stream, p, &c, r, info.FullMethod})
}

// checked is a stream whose messages are checked before the service gets them.
type checked struct {
	grpc.ServerStream
	policy *Policy
	caller *caller
	rule   rule
	method string
}

// RecvMsg implements grpc.ServerStream.
func (s *checked) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.policy.speaksFor(s.caller, s.rule, s.method, m)
}

var (
	accessDescRefused = prometheus.NewDesc("psidecar_planner_refused_callers_total", "Refused planner calls: role (certificate without the role), host (certificate for another host), user (local user with read access only), handshake (invalid certificate or no TLS), silent (reset before authentication), no_certificate, unknown_method.", []string{"reason"}, nil)
	accessDescChanges = prometheus.NewDesc("psidecar_planner_changes_total", "Calls that make changes; each is logged with its caller.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *Policy) Describe(out chan<- *prometheus.Desc) {
	out <- accessDescRefused
	out <- accessDescChanges
}

// Collect implements prometheus.Collector.
func (p *Policy) Collect(out chan<- prometheus.Metric) {
	for why, word := range reasons {
		out <- prometheus.MustNewConstMetric(accessDescRefused, prometheus.CounterValue, float64(p.countOf(why)), word)
	}
	out <- prometheus.MustNewConstMetric(accessDescChanges, prometheus.CounterValue, float64(p.changes.Load()))
}
