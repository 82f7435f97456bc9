package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var hellos = []Hello{
	{ID: 1, Destination: netip.MustParseAddrPort("10.0.0.1:9000")},
	{
		Instance: relay.Instance{1, 2, 3}, ID: 1<<64 - 1, Client: netip.MustParseAddrPort("10.1.2.3:4"),
		Destination: netip.MustParseAddrPort("[2001:db8::1]:65535"),
		Offers:      []Offer{{"compact", []byte(`{"keys":1}`)}, {"other", bytes.Repeat([]byte{7}, relay.MaxOffer)}},
	},
}

var answers = []Answer{
	{Instance: relay.Instance{9}, Accepted: []Offer{{"compact", []byte("limits")}}},
	{Refused: reason.Unreachable, Text: "connecting to 10.0.0.1:9000: connection refused"},
}

func TestHelloAndAnswerRoundTrip(t *testing.T) {
	for _, h := range hellos {
		more := strings.NewReader(string(h.Append(nil)) + "and more")
		got := require.Value(ReadHello(more))(t)
		normalise(got.Offers)
		if !reflect.DeepEqual(*got, h) {
			t.Errorf("got %+v, want %+v", *got, h)
		}
		if more.Len() != len("and more") {
			t.Errorf("%d bytes were left, want those after the hello", more.Len())
		}
	}
	for _, a := range answers {
		got := require.Value(ReadAnswer(bytes.NewReader(a.Append(nil))))(t)
		normalise(got.Accepted)
		if !reflect.DeepEqual(*got, a) {
			t.Errorf("got %+v, want %+v", *got, a)
		}
	}
}

// normalise cuts capacities, which DeepEqual does not see but append would.
func normalise(offers []Offer) {
	for i := range offers {
		offers[i].Data = bytes.Clone(offers[i].Data)
	}
}

// A hello that was cut anywhere, or grew where it says how long it is, is
// refused.
func TestDamagedHellos(t *testing.T) {
	whole := hellos[1].Append(nil)
	for n := range whole {
		if _, err := ReadHello(bytes.NewReader(whole[:n])); reason.Of(err) != reason.NotHello {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
	change := func(at int, to byte) []byte {
		b := bytes.Clone(whole)
		b[at] = to
		return b
	}
	for _, c := range []struct {
		name  string
		bytes []byte
		want  reason.Reason
	}{
		{"another protocol", []byte("GET / HTTP/1.1\r\n\r\n"), reason.NotHello},
		{"a later version", change(len(magic), Version+1), reason.Version},
		{"a huge size", change(len(magic)+1, 0xff), reason.NotHello},
		{"an address of 5 bytes", change(headerSize+24, 5), reason.NotHello},
		{"200 codecs", change(headerSize+24+1+4+2+1+16+2, 200), reason.NotHello},
		{"no destination", (&Hello{ID: 1}).Append(nil), reason.NotHello},
	} {
		if _, err := ReadHello(bytes.NewReader(c.bytes)); reason.Of(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

func FuzzHello(f *testing.F) {
	for _, h := range hellos {
		f.Add(h.Append(nil))
	}
	for _, a := range answers {
		f.Add(a.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := ReadHello(bytes.NewReader(b)); err == nil {
			again, err := ReadHello(bytes.NewReader(h.Append(nil)))
			if err != nil || !reflect.DeepEqual(h, again) {
				t.Errorf("%+v came back as %+v, %v", h, again, err)
			}
		} else if !reason.Has(err) {
			t.Errorf("no reason: %v", err)
		}
		if a, err := ReadAnswer(bytes.NewReader(b)); err == nil {
			if again, err := ReadAnswer(bytes.NewReader(a.Append(nil))); err != nil || !reflect.DeepEqual(a, again) {
				t.Errorf("%+v came back as %+v, %v", a, again, err)
			}
		}
	})
}

func identityOf(t *testing.T, f certs.Files, peers ...string) *Identity {
	i := require.Value(LoadIdentity(Files{Files: identity.Files{Cert: f.Cert, Key: f.Key, CA: f.CA}, Peers: peers}))(t)
	return i
}

// meet links a dialer with an acceptor, and sends a byte each way where that
// succeeds.
func meet(t *testing.T, dialer, acceptor *Identity) (dialed, accepted error) {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			defer conn.Close()
			a := Acceptor{HelloTimeout: time.Minute, TLS: acceptor}
			far, h, err := a.Accept(context.Background(), conn)
			if err != nil {
				return err
			}
			if h.ID != 77 {
				return errors.New("another hello came than was said")
			}
			if err := Reply(far, &answers[0]); err != nil {
				return err
			}
			_, err = io.Copy(far, far)
			return err
		}()
	}()
	d := Dialer{Net: &net.Dialer{}, ConnectTimeout: time.Minute, AnswerTimeout: time.Minute, TLS: dialer}
	conn, _, err := d.Dial(context.Background(), l.Addr().String(), &Hello{ID: 77, Destination: hellos[0].Destination})
	if err == nil {
		conn.Write([]byte{42})
		var b [1]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil || b[0] != 42 {
			t.Errorf("the link does not carry bytes: %v", err)
		}
		conn.Close()
	}
	return err, <-ended
}

func TestMutualTLS(t *testing.T) {
	ours, theirs := certs.NewAuthority(t, "ours"), certs.NewAuthority(t, "theirs")
	tomorrow, yesterday := time.Now().Add(24*time.Hour), time.Now().Add(-time.Hour)
	good := ours.Issue(t, t.TempDir(), "a.psidecar.svc", tomorrow, "spiffe://cluster/psidecar/proxy/a")
	named := ours.Issue(t, t.TempDir(), "a.psidecar.svc", tomorrow, "spiffe://cluster/ns/train/sa/psidecar")
	agent := ours.Issue(t, t.TempDir(), "a.psidecar.svc", tomorrow, "psidecar://agent/a", "psidecar://operator/alice", "psidecar://planner/a")
	expired := ours.Issue(t, t.TempDir(), "a.psidecar.svc", yesterday, "psidecar://proxy/a")
	wrongCA := theirs.Issue(t, t.TempDir(), "a.psidecar.svc", tomorrow, "psidecar://proxy/a")
	wrongCA.CA = ours.File
	for _, c := range []struct {
		name             string
		dialer, acceptor *Identity
		dialed, accepted reason.Reason // empty: no error
	}{
		{"both good", identityOf(t, good), identityOf(t, good), "", ""},
		{"names match", identityOf(t, good, "*.psidecar.svc"), identityOf(t, good, "nobody", "*.psidecar.svc"), "", ""},
		{"without roles, by name", identityOf(t, named, "*.psidecar.svc"), identityOf(t, named, "nobody", "spiffe://cluster/ns/*/sa/psidecar"), "", ""},
		{"the dialer has no role", identityOf(t, named), identityOf(t, good), reason.TLS, reason.Identity},
		{"the acceptor has no role", identityOf(t, good), identityOf(t, named), reason.Identity, reason.TLS},
		{"the dialer has other roles", identityOf(t, agent), identityOf(t, good), reason.TLS, reason.Identity},
		{"the acceptor has other roles", identityOf(t, good), identityOf(t, agent), reason.Identity, reason.TLS},
		{"other roles, though by name", identityOf(t, agent), identityOf(t, good, "*.psidecar.svc"), reason.TLS, reason.Identity},
		{"the dialer's certificate expired", identityOf(t, expired), identityOf(t, good), reason.TLS, reason.TLS},
		{"the acceptor's certificate expired", identityOf(t, good), identityOf(t, expired), reason.TLS, reason.TLS},
		{"the dialer's is of another CA", identityOf(t, wrongCA), identityOf(t, good), reason.TLS, reason.TLS},
		{"the acceptor's is of another CA", identityOf(t, good), identityOf(t, wrongCA), reason.TLS, reason.TLS},
		{"the dialer is not on the list", identityOf(t, good), identityOf(t, good, "b.psidecar.svc"), reason.TLS, reason.Identity},
		{"the acceptor is not on the list", identityOf(t, good, "b.*"), identityOf(t, good), reason.Identity, reason.TLS},
		{"the dialer is plain", nil, identityOf(t, good), reason.NotHello, reason.TLS},
		{"the acceptor is plain", identityOf(t, good), nil, reason.TLS, reason.NotHello},
	} {
		t.Run(c.name, func(t *testing.T) {
			dialed, accepted := meet(t, c.dialer, c.acceptor)
			for _, end := range []struct {
				name string
				err  error
				want reason.Reason
			}{{"dialer", dialed, c.dialed}, {"acceptor", accepted, c.accepted}} {
				if end.want == "" && end.err != nil || end.want != "" && reason.Of(end.err) != end.want {
					t.Errorf("the %s got %v, want %q", end.name, end.err, end.want)
				}
				if end.want == reason.Identity && !strings.Contains(end.err.Error(), "--tls-peer") {
					t.Errorf("the %s is told %q, and not what to do", end.name, end.err)
				}
			}
		})
	}
}

// provenBy returns how the ends of a link know each other, if the dialer claims to be one instance
// and the acceptor to be another.
func provenBy(t *testing.T, dialer, acceptor *Identity, from, to relay.Instance) (atDialer, atAcceptor relay.Instance) {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		accepted <- func() error {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			defer conn.Close()
			a := Acceptor{Instance: to, HelloTimeout: time.Minute, TLS: acceptor}
			far, h, err := a.Accept(context.Background(), conn)
			if err != nil {
				return err
			}
			atAcceptor = h.Proven
			return Reply(far, &Answer{Instance: to})
		}()
	}()
	d := Dialer{Net: &net.Dialer{}, ConnectTimeout: time.Minute, AnswerTimeout: time.Minute, TLS: dialer}
	conn, answer, err := d.Dial(context.Background(), l.Addr().String(), &Hello{Instance: from, Destination: hellos[0].Destination})
	require.NoError(t, err)
	conn.Close()
	require.NoError(t, <-accepted)
	return answer.Proven, atAcceptor
}

// What one proxy claims to be another may claim too. What is proven it cannot.
func TestInstancesAreProven(t *testing.T) {
	ca := certs.NewAuthority(t, "ca")
	issue := func() *Identity {
		return identityOf(t, ca.Issue(t, t.TempDir(), "a", time.Now().Add(time.Hour), certs.Parts...))
	}
	mine, peer, thief := issue(), issue(), issue()
	me, other := relay.Instance{1}, relay.Instance{2}
	atMe, atPeer := provenBy(t, mine, peer, me, other)
	if again, back := provenBy(t, mine, peer, me, other); again != atMe || back != atPeer {
		t.Error("a second link proves something else than the first")
	}
	// A link in the other direction is one with the same peer.
	if back, again := provenBy(t, peer, mine, other, me); again != atMe || back != atPeer {
		t.Error("a link back proves something else")
	}
	if _, got := provenBy(t, thief, peer, me, other); got == atPeer {
		t.Error("a proxy that claims another's instance counts as that when it dials")
	}
	if got, _ := provenBy(t, mine, thief, me, other); got == atMe {
		t.Error("a proxy that claims another's instance counts as that when it is dialed")
	}
	if _, got := provenBy(t, thief, peer, other, other); got == other {
		t.Error("a proxy counts as the one that it has dialed")
	}
	if got, back := provenBy(t, mine, mine, me, me); got != me || back != me {
		t.Error("a proxy that has dialed itself is somebody else")
	}
	if got, back := provenBy(t, nil, nil, me, other); got != other || back != me {
		t.Error("without TLS instances do not count as claimed")
	}
}

// A certificate that is replaced is used from then on.
func TestCertificatesAreReadAgain(t *testing.T) {
	ca := certs.NewAuthority(t, "ca")
	folder := t.TempDir()
	peer := identityOf(t, ca.Issue(t, t.TempDir(), "peer", time.Now().Add(time.Hour), certs.Parts...))
	files := ca.Issue(t, folder, "me", time.Now().Add(-time.Minute), certs.Parts...)
	me := identityOf(t, files)
	if err, _ := meet(t, me, peer); reason.Of(err) != reason.TLS {
		t.Fatalf("with an expired certificate: %v", err)
	}
	ca.Issue(t, folder, "me", time.Now().Add(time.Hour), certs.Parts...)
	require.Await(t, "links with the new certificate", func() error {
		err, _ := meet(t, me, peer)
		if err != nil && reason.Of(err) != reason.TLS {
			t.Fatalf("with the new certificate: %v", err)
		}
		return err
	})
}

func TestLoadIdentityChecksPatterns(t *testing.T) {
	f := Files{Peers: []string{"a["}}
	if _, err := LoadIdentity(f); err == nil || !strings.Contains(err.Error(), `peer pattern "a[": `) {
		t.Errorf("got %v", err)
	}
}

// A peer that takes the connection and says nothing costs no more than the
// time allowed.
func TestSilentPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	d := Dialer{Net: &net.Dialer{}, ConnectTimeout: time.Second, AnswerTimeout: 20 * time.Millisecond}
	_, _, err = d.Dial(context.Background(), l.Addr().String(), &hellos[0])
	if reason.Of(err) != reason.HelloTimeout || !errors.Is(err, ErrNoProxy) {
		t.Errorf("dialing: %v", err)
	}
	conn := require.Value(l.Accept())(t)
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l.Close()
	if _, _, err := d.Dial(ctx, l.Addr().String(), &hellos[0]); !errors.Is(err, ErrNoProxy) {
		t.Errorf("dialing nobody: %v", err)
	}
}
