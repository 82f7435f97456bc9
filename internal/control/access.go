// This file authorises calls to a planner, and identifies callers.
//
// Each call comes with its caller's credentials: a certificate's roles, or the user
// of a process on this host. Out goes the call to the planner's services, or
// PERMISSION_DENIED with the missing right. Agents and proxies speak only for the
// hosts that their certificates name; operators change things, and each change is
// logged with its author. The command psidecar planner puts it before its services.

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

// A Rule lists the roles that may call a method.
type rule struct {
	roles []identity.Role
	// host: the caller speaks for the host that its messages name.
	host bool
	// change: it is logged with its author.
	change bool
	// read: other users of the planner's host may too.
	read bool
}

var (
	read    = rule{roles: identity.Roles, read: true}
	operate = rule{roles: []identity.Role{identity.OperatorRole}, change: true}
	ofAgent = rule{roles: []identity.Role{identity.AgentRole, identity.PlannerRole}, host: true}
	ofProxy = rule{roles: []identity.Role{identity.ProxyRole, identity.PlannerRole}, host: true}
)

// rules cover all methods; a call to any other is refused. The planner's own
// certificate may do what agents and proxies may: in psidecar up they are one
// process.
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

// Local identifies a caller on this host that has no certificate. It is the
// AuthInfo of its connection.
type Local struct {
	credentials.CommonAuthInfo
	UID int // -1: not known
	// Trusted says that this user may do everything; others may read.
	Trusted bool
	// Why says why not, or why the user is not known.
	Why string
}

// AuthType implements credentials.AuthInfo.
func (Local) AuthType() string { return "local" }

// Policy is the access policy of a planner. Its fields are not changed once it is
// used.
type Policy struct {
	// Rules give roles to certificates that name none themselves.
	Rules []identity.RoleRule
	// Open lets whoever comes without a certificate do everything (--insecure).
	Open bool
	Log  *slog.Logger // nil: the default

	refused [len(reasons)]atomic.Uint64
	changes atomic.Uint64
	crowded atomic.Pointer[func() uint64] // see Crowd
	warned  atomic.Int64                  // when a refusal was last logged, in seconds since 1970
}

// Why callers were refused.
const (
	unknownMethod = iota
	noIdentity
	noRole
	otherHost
	otherUser
	handshake
	silent
)

var reasons = [...]string{
	unknownMethod: "unknown_method", noIdentity: "no_certificate", noRole: "role", otherHost: "host", otherUser: "user", handshake: "handshake", silent: "silent",
}

// caller is the identity of a caller, as far as rules need it.
type caller struct {
	who    string
	cert   *x509.Certificate // nil: none
	grants identity.Grants
	local  *Local // nil: not a process of this host
	open   bool   // nobody is asked for anything
}

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

// refuse counts and words a refusal.
func (p *Policy) refuse(why int, method string, c *caller, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	p.note(why, "caller", c.who, "method", method, "error", text)
	return status.Error(codes.PermissionDenied, text)
}

// Failed notes a connection whose handshake failed: its certificate does not
// hold, or it speaks no TLS.
func (p *Policy) Failed(from net.Addr, err error) { p.note(handshake, "caller", from, "error", err) }

// Crowd adds a count of connections that were reset for others, before they had
// identified themselves, to the refused ones.
func (p *Policy) Crowd(count func() uint64) { p.crowded.Store(&count) }

// countOf is how many callers were refused for a reason.
func (p *Policy) countOf(why int) uint64 {
	if count := p.crowded.Load(); why == silent && count != nil {
		return (*count)()
	}
	return p.refused[why].Load()
}

func (p *Policy) note(why int, words ...any) {
	p.refused[why].Add(1)
	level := slog.LevelDebug
	if now := time.Now().Unix(); p.warned.Swap(now) != now { // once a second: a refused caller may retry for ever
		level = slog.LevelWarn
	}
	p.log().Log(context.Background(), level, "a caller of the planner is refused", append(words, "reason", reasons[why])...)
}

func (p *Policy) log() *slog.Logger { return cmp.Or(p.Log, slog.Default()) }

// may decides about a call, before its messages.
func (p *Policy) may(c *caller, method string) (rule, error) {
	r, ok := rules[method]
	short := method[strings.LastIndexByte(method, '/')+1:]
	switch {
	case !ok:
		return r, p.refuse(unknownMethod, method, c, "nobody may call %s", method)
	case c.open:
		return r, nil
	case c.local != nil && (c.local.Trusted || r.read):
		return r, nil
	case c.local != nil:
		return r, p.refuse(otherUser, method, c, "%s: %s", short, c.local.Why)
	case c.cert == nil:
		return r, p.refuse(noIdentity, method, c, "%s needs a certificate (--planner-ca, --planner-cert, --planner-key)", short)
	}
	for _, wanted := range r.roles {
		if c.grants.Has(wanted) {
			return r, nil
		}
	}
	return r, p.refuse(noRole, method, c, "%s: %v", short, identity.MissingRole(c.cert, c.grants, r.roles[0], "the planner's --tls-role"))
}

// speaksFor decides whether a caller may speak for the host of a message.
func (p *Policy) speaksFor(c *caller, r rule, method string, message any) error {
	of, ok := message.(interface{ GetHost() string })
	if !r.host || !ok || c.open || c.local != nil {
		return nil
	}
	if c.grants.Has(identity.PlannerRole) || slices.ContainsFunc(r.roles, func(o identity.Role) bool { return c.grants.For(o, of.GetHost()) }) {
		return nil
	}
	return p.refuse(otherHost, method, c, "the certificate of %s has %s and may not speak for host %.300q: issue one for that name, or start the %s with --host as its certificate says",
		identity.WhoIs(c.cert), c.grants, of.GetHost(), r.roles[0])
}

// Unary is the interceptor of calls.
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

// brief is a request as text, cut where it is long.
func brief(request any) string {
	text := fmt.Sprint(request)
	if len(text) > maxLogged {
		return text[:maxLogged] + "..."
	}
	return text
}

// maxLogged bounds what of a request is logged, in bytes.
const maxLogged = 1024

// Stream is the interceptor of streams.
func (p *Policy) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	c := p.callerOf(stream.Context())
	r, err := p.may(&c, info.FullMethod)
	if err != nil {
		return err
	}
	return handle(service, &checked{stream, p, &c, r, info.FullMethod})
}

// checked is a stream whose messages are looked at before the service has them.
type checked struct {
	grpc.ServerStream
	policy *Policy
	caller *caller
	rule   rule
	method string
}

func (s *checked) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.policy.speaksFor(s.caller, s.rule, s.method, m)
}

var (
	accessDescRefused = prometheus.NewDesc("psidecar_planner_refused_callers_total", "Calls of the planner that were refused: role, the certificate lacks the role; host, it is for another host; user, a user of this host who may read alone; handshake, a certificate that does not hold, or no TLS; silent, reset for others before it had said who it is; no_certificate; unknown_method.", []string{"reason"}, nil)
	accessDescChanges = prometheus.NewDesc("psidecar_planner_changes_total", "Calls that change something, which are logged with who made them.", nil, nil)
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
