package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// from is the context of a call by somebody.
func from(info credentials.AuthInfo) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(198, 18, 0, 9), Port: 1}, AuthInfo: info})
}

// certified is the AuthInfo of somebody with a certificate for these URIs.
func certified(t *testing.T, uris ...string) credentials.AuthInfo {
	t.Helper()
	c := &x509.Certificate{DNSNames: []string{"somebody"}}
	for _, text := range uris {
		u := require.Value(url.Parse(text))(t)
		c.URIs = append(c.URIs, u)
	}
	return credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}}
}

// stream is a stream on which one message comes.
type stream struct {
	grpc.ServerStream
	ctx context.Context
	in  proto.Message
}

func (s stream) Context() context.Context { return s.ctx }

func (s stream) RecvMsg(m any) error {
	proto.Merge(m.(proto.Message), s.in)
	return nil
}

// call makes a call of a method, as a stream or not, and reports whether it got
// to the service.
func call(p *Policy, ctx context.Context, method string, message proto.Message, streams bool) (reached bool, err error) {
	if !streams {
		_, err = p.Unary(ctx, message, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
			reached = true
			return nil, nil
		})
		return reached, err
	}
	err = p.Stream(nil, stream{ctx: ctx, in: message}, &grpc.StreamServerInfo{FullMethod: method}, func(_ any, s grpc.ServerStream) error {
		err := s.RecvMsg(message.ProtoReflect().New().Interface())
		reached = err == nil
		return err
	})
	return reached, err
}

const prefix = "/psidecar.planner.v1."

// calls are the calls of all methods, each for host-a where it names one.
var calls = map[string]struct {
	message proto.Message
	streams bool
	roles   []identity.Role // who may
	host    bool
}{
	"Planner/Report":  {&api.HostReport{Host: "host-a"}, true, []identity.Role{identity.AgentRole, identity.PlannerRole}, true},
	"Plans/Watch":     {&api.WatchRequest{Host: "host-a"}, true, []identity.Role{identity.ProxyRole, identity.PlannerRole}, true},
	"Plans/Record":    {&api.RecordRequest{Host: "host-a"}, false, []identity.Role{identity.ProxyRole, identity.PlannerRole}, true},
	"Plans/Progress":  {&api.MoveReport{Host: "host-a"}, true, []identity.Role{identity.ProxyRole, identity.PlannerRole}, true},
	"Plans/Teach":     {&api.Lesson{Host: "host-a"}, true, []identity.Role{identity.ProxyRole, identity.PlannerRole}, true},
	"Plans/Describe":  {&api.DescribeRequest{}, false, identity.Roles, false},
	"Plans/Act":       {&api.ActRequest{}, false, []identity.Role{identity.OperatorRole}, false},
	"Codecs/Follow":   {&api.CodecReport{Host: "host-a"}, true, []identity.Role{identity.ProxyRole, identity.PlannerRole}, true},
	"Codecs/Set":      {&api.JobRules{}, false, []identity.Role{identity.OperatorRole}, false},
	"Codecs/SetSums":  {&api.JobRules{}, false, []identity.Role{identity.OperatorRole}, false},
	"Codecs/Try":      {&api.TryCodecs{}, false, []identity.Role{identity.OperatorRole}, false},
	"Codecs/Describe": {&api.DescribeRulesRequest{}, false, identity.Roles, false},
}

// Every method of every service has a rule, and this test knows it.
func TestAllMethodsHaveRules(t *testing.T) {
	n := 0
	for _, service := range []grpc.ServiceDesc{api.Planner_ServiceDesc, api.Plans_ServiceDesc, api.Codecs_ServiceDesc} {
		var methods []string
		for _, m := range service.Methods {
			methods = append(methods, m.MethodName)
		}
		for _, m := range service.Streams {
			methods = append(methods, m.StreamName)
		}
		for _, m := range methods {
			n++
			name := "/" + service.ServiceName + "/" + m
			if _, ok := rules[name]; !ok {
				t.Errorf("%s has no rule: nobody may call it", name)
			}
			if _, ok := calls[strings.TrimPrefix(name, prefix)]; !ok {
				t.Errorf("%s is not tested", name)
			}
		}
	}
	if n != len(rules) || n != len(calls) {
		t.Errorf("%d methods, %d rules, %d tested", n, len(rules), len(calls))
	}
}

// Each role may do its own calls and nothing else.
func TestRolesMayDoWhatIsTheirOwn(t *testing.T) {
	for name, c := range calls {
		for _, r := range identity.Roles {
			p := &Policy{}
			reached, err := call(p, from(certified(t, identity.RoleURI(r, "host-a").String())), prefix+name, c.message, c.streams)
			may := false
			for _, allowed := range c.roles {
				may = may || allowed == r
			}
			if reached != may || may != (err == nil) {
				t.Errorf("%s by the %s: %v, %v", name, r, reached, err)
			}
			if !may && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "psidecar certs") || p.refused[noRole].Load() != 1) {
				t.Errorf("%s by the %s: %v, counted %d times", name, r, err, p.refused[noRole].Load())
			}
		}
	}
}

// An agent or proxy speaks for its own host alone, in the first message of a
// stream and in later ones.
func TestHostsSpeakForThemselvesAlone(t *testing.T) {
	for name, c := range calls {
		if !c.host {
			continue
		}
		for host, may := range map[string]bool{"host-a": true, "HOST-A": true, identity.AnyHost: true, "host-b": false, "host-a.example": false} {
			p := &Policy{}
			uri := identity.RoleURI(c.roles[0], host).String()
			reached, err := call(p, from(certified(t, uri)), prefix+name, c.message, c.streams)
			if reached != may || may != (err == nil) {
				t.Errorf("%s for host-a by %s: %v, %v", name, uri, reached, err)
			}
			if !may && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "host-a") || p.refused[otherHost].Load() != 1) {
				t.Errorf("%s for host-a by %s: %v, counted %d times", name, uri, err, p.refused[otherHost].Load())
			}
		}
		// One certificate's agent role for a host is no proxy role for it.
		other := map[identity.Role]identity.Role{identity.AgentRole: identity.ProxyRole, identity.ProxyRole: identity.AgentRole}[c.roles[0]]
		mixed := certified(t, identity.RoleURI(c.roles[0], "host-b").String(), identity.RoleURI(other, "host-a").String())
		if reached, err := call(&Policy{}, from(mixed), prefix+name, c.message, c.streams); reached || err == nil {
			t.Errorf("%s for host-a, whose %s it is: %v", name, other, err)
		}
	}
}

// A caller without a certificate is refused, unless it is a trusted user of this
// host, another user that only reads, or no certificates are asked for.
func TestWithoutCertificates(t *testing.T) {
	for who, tc := range map[string]struct {
		info  credentials.AuthInfo
		open  bool
		read  bool
		write bool
		why   int
	}{
		"nobody known":       {nil, false, false, false, noIdentity},
		"nobody is asked":    {nil, true, true, true, 0},
		"a trusted user":     {Local{UID: 0, Trusted: true}, false, true, true, 0},
		"another user":       {Local{UID: 1000, Why: "user 1000 may not"}, false, true, false, otherUser},
		"a user not known":   {Local{UID: -1, Why: "not known"}, false, true, false, otherUser},
		"no role, but open":  {certified(t), true, false, false, noRole},
		"no role, nor asked": {certified(t), false, false, false, noRole},
	} {
		for name, c := range calls {
			p := &Policy{Open: tc.open}
			want := tc.write || tc.read && len(c.roles) == len(identity.Roles)
			reached, err := call(p, from(tc.info), prefix+name, c.message, c.streams)
			if reached != want || want != (err == nil) {
				t.Errorf("%s by %s: %v, %v", name, who, reached, err)
			}
			if !want && p.refused[tc.why].Load() != 1 {
				t.Errorf("%s by %s: it is not counted as %s", name, who, reasons[tc.why])
			}
		}
	}
}

// What there is no rule for nobody may call.
func TestUnknownMethod(t *testing.T) {
	p := &Policy{}
	_, err := call(p, from(certified(t, "psidecar://operator/alice")), prefix+"Plans/Burn", &api.ActRequest{}, false)
	if status.Code(err) != codes.PermissionDenied || p.refused[unknownMethod].Load() != 1 {
		t.Errorf("%v", err)
	}
}
