package planner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIdentity(t *testing.T) {
	for _, tc := range []struct {
		identity string
		want     standbyAddress
		page     string
	}{
		{"planner-0-ABC@10.0.0.7:9811/9812", standbyAddress{netip.MustParseAddrPort("10.0.0.7:9811"), 9812}, "10.0.0.7:9812"},
		{"planner@[fd00::7]:9811/9812", standbyAddress{netip.MustParseAddrPort("[fd00::7]:9811"), 9812}, "[fd00::7]:9812"},
		{"planner@10.0.0.7:9811/0", standbyAddress{netip.MustParseAddrPort("10.0.0.7:9811"), 0}, "invalid AddrPort"},
		{"planner", standbyAddress{}, "invalid AddrPort"},
	} {
		name, _, _ := strings.Cut(tc.identity, "@")
		if got := tc.want.Identity(name); got != tc.identity {
			t.Errorf("%v has the identity %q, want %q", tc.want, got, tc.identity)
		}
		if got := standbyAddressOf(tc.identity); got != tc.want || got.Page().String() != tc.page {
			t.Errorf("%s has the address %v, its page is at %v", tc.identity, got, got.Page())
		}
	}
	for _, other := range []string{"", "a@", "a@b", "a@10.0.0.7/1", "a@10.0.0.7:1", "a@10.0.0.7:1/x", "a@10.0.0.7:1/70000", "a@10.0.0.7:99999/1"} {
		if got := standbyAddressOf(other); got != (standbyAddress{}) {
			t.Errorf("%q has the address %v", other, got)
		}
	}
}

// leader is a planner that answers each line with its name.
func leader(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l := standbyListen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					fmt.Fprintf(c, "%s: %s\n", name, lines.Text())
				}
			}()
		}
	}()
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func standbyListen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// client is a caller of a planner.
type client struct {
	net.Conn
	lines *bufio.Reader
}

func come(t *testing.T, to net.Listener) client {
	t.Helper()
	c, err := net.Dial("tcp", to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client{c, bufio.NewReader(c)}
}

// says sends a line and returns the answer.
func (c client) says(line string) (string, error) {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	answer, err := c.lines.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// TestListener: a caller is Accept's while there is no leader, is forwarded to the
// leader otherwise, and is dropped when that changes.
func TestListener(t *testing.T) {
	a, b := leader(t, "a"), leader(t, "b")
	var to atomic.Pointer[netip.AddrPort]
	to.Store(&netip.AddrPort{})
	l := &standbyListener{Listener: standbyListen(t), To: func() netip.AddrPort { return *to.Load() }}
	got := make(chan net.Conn, 1)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			got <- c
		}
	}()
	come(t, l)
	(<-got).Close()

	to.Store(&a)
	first, second := come(t, l), come(t, l)
	for _, c := range []client{first, second, first} {
		if answer, err := c.says("hello"); answer != "a: hello" {
			t.Fatalf("the leader answers %q, %v", answer, err)
		}
	}
	to.Store(&b)
	l.Drop()
	if answer, err := first.says("hello"); err == nil {
		t.Errorf("who had the lead still answers %q", answer)
	}
	third := come(t, l)
	if answer, err := third.says("hello"); answer != "b: hello" {
		t.Errorf("the next leader answers %q, %v", answer, err)
	}
	nobody := standbyListen(t)
	away := nobody.Addr().(*net.TCPAddr).AddrPort()
	nobody.Close()
	to.Store(&away)
	fourth := come(t, l)
	if _, err := fourth.lines.ReadByte(); err == nil {
		t.Error("a leader that is away answers")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept ends with %v", err)
	}
	if answer, err := third.says("hello"); err == nil {
		t.Errorf("after Close it goes on: %q", answer)
	}
	counted := map[string]float64{}
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(l)
	families, err := metrics.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	for _, m := range families[0].Metric {
		counted[m.Label[0].GetValue()] = m.Counter.GetValue()
	}
	if want := map[string]float64{"carried": 3, "too_many": 0, "unreachable": 1}; !maps.Equal(counted, want) {
		t.Errorf("it has counted %v, want %v", counted, want)
	}
}

func TestPage(t *testing.T) {
	own := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "own") })
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "leader %s %s host %s", r.Method, r.URL, r.Host)
	}))
	defer there.Close()
	leader := netip.MustParseAddrPort(there.Listener.Addr().String())
	for _, tc := range []struct {
		name, method, path, want string
		to                       netip.AddrPort
		sentOn                   bool
	}{
		{"no leader", "GET", "/api/v1/jobs", "own", netip.AddrPort{}, false},
		{"leader", "GET", "/api/v1/keys?job=a", "leader GET /api/v1/keys?job=a host example.com", leader, false},
		{"changes too", "POST", "/api/v1/codecs/try", "leader POST /api/v1/codecs/try host example.com", leader, false},
		{"its own health", "GET", "/healthz", "own", leader, false},
		{"its own readiness", "GET", "/readyz", "own", leader, false},
		{"its own metrics", "GET", "/metrics", "own", leader, false},
		{"sent on once", "GET", "/api/v1/jobs", "own", leader, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest(tc.method, tc.path, nil)
			if tc.sentOn {
				r.Header.Set(sentOn, "1")
			}
			w := httptest.NewRecorder()
			standbyPage(own, func() netip.AddrPort { return tc.to }).ServeHTTP(w, r)
			if got := w.Body.String(); w.Code != http.StatusOK || got != tc.want {
				t.Errorf("it answers %d %q, want %q", w.Code, got, tc.want)
			}
		})
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
