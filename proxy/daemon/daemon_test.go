package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two hosts of the loopback network.
const (
	workerHost = "127.0.0.1"
	serverHost = "127.0.0.2"
)

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l := require.Value(net.Listen("tcp", address))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

func addrOf(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

// start runs a daemon until the test ends.
func start(t *testing.T, o Options) *Daemon {
	t.Helper()
	o.Proxy.MemoryBytes, o.Proxy.MaxConnections, o.Proxy.Insecure = proxy.LeastMemory, 16, true
	o.Proxy.Health = &health.Loops{}
	d := require.Value(New(t.Context(), o))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return d
}

// echo is a server that sends back what it gets.
func echo(t *testing.T) net.Listener {
	l := listen(t, serverHost+":0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return l
}

// say sends a word to an address and returns what comes back until the end.
func say(t *testing.T, at net.Addr, word string) (string, error) {
	t.Helper()
	c := require.Value(net.Dial("tcp", at.String()))(t)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	back, err := io.ReadAll(c)
	return string(back), err
}

// The daemons of two hosts carry a connection between them.
func TestTwoHostsCarryAConnection(t *testing.T) {
	server, mesh, in := echo(t), listen(t, serverHost+":0"), listen(t, workerHost+":0")
	port := addrOf(mesh).Port()
	far := start(t, Options{Mesh: []net.Listener{mesh}, Proxy: proxy.Options{
		MeshPort: port, Reach: proxy.Reach{Ports: []proxy.PortRange{{First: 1, Last: 65535}}},
	}})
	near := start(t, Options{Proxy: proxy.Options{MeshPort: port, MeshOnly: true},
		Forward: []proxy.Listener{{Listener: in, Destination: proxy.Fixed(addrOf(server))}}})
	if back, err := say(t, in.Addr(), "hello"); err != nil || back != "hello" {
		t.Fatalf("%q came back, %v", back, err)
	}
	for name, d := range map[string]*Daemon{"the worker's": near, "the server's": far} {
		if n := d.Proxy().State().Carried; n != 1 {
			t.Errorf("%s proxy has carried %d connections", name, n)
		}
	}
}

// slowHeir is an agent that takes its time to say whether it stays.
type slowHeir struct{ asked, answer chan struct{} }

func (h slowHeir) Holds() (int, time.Duration)                { return 1, time.Minute }
func (h slowHeir) Leave(uint64, *net.TCPConn, *os.File) error { return errors.ErrUnsupported }
func (h slowHeir) Returned(uint64)                            {}
func (h slowHeir) Stays(context.Context) error {
	h.asked <- struct{}{}
	<-h.answer
	return errors.New("the agent ends as well")
}

// A proxy that finds out whether its agent ends as well takes links meanwhile.
func TestAProxyThatIsAboutToEndTakesLinks(t *testing.T) {
	server, mesh, in := echo(t), listen(t, serverHost+":0"), listen(t, workerHost+":0")
	o := Options{Mesh: []net.Listener{mesh}, Proxy: proxy.Options{
		MeshPort: addrOf(mesh).Port(), Reach: proxy.Reach{Ports: []proxy.PortRange{{First: 1, Last: 65535}}},
		MemoryBytes: proxy.LeastMemory, MaxConnections: 16, Insecure: true, Health: &health.Loops{},
	}}
	far := require.Value(New(t.Context(), o))(t)
	heir := slowHeir{make(chan struct{}), make(chan struct{})}
	far.Proxy().LeaveTo(heir)
	start(t, Options{Proxy: proxy.Options{MeshPort: o.Proxy.MeshPort, MeshOnly: true},
		Forward: []proxy.Listener{{Listener: in, Destination: proxy.Fixed(addrOf(server))}}})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- far.Run(ctx) }()
	end()
	<-heir.asked
	if back, err := say(t, in.Addr(), "hello"); err != nil || back != "hello" {
		t.Errorf("%q came back, %v", back, err)
	}
	close(heir.answer)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", mesh.Addr().String()); err == nil {
		c.Close()
		t.Error("a proxy that has ended takes links")
	}
}

// Where requests are routed no connection goes to a host without a proxy, though the
// caller did not ask for that.
func TestRoutedConnectionsStayInTheMesh(t *testing.T) {
	server, in, free := echo(t), listen(t, workerHost+":0"), listen(t, serverHost+":0")
	port := addrOf(free).Port()
	free.Close() // nobody takes links there
	start(t, Options{Proxy: proxy.Options{MeshPort: port},
		Forward: []proxy.Listener{{Listener: in, Destination: proxy.Fixed(addrOf(server))}},
		Routing: &jobs.Options{Dir: t.TempDir(), Host: "h", Placement: &plan.Placement{K: 1, Server: []int{0}}}})
	if back, err := say(t, in.Addr(), "hello"); err == nil && back != "" {
		t.Errorf("%q came back from a host without a proxy", back)
	}
}

// Until the agent can be asked, nobody knows whose a port is.
func TestOwnerWithoutAnAgent(t *testing.T) {
	d := require.Value(New(t.Context(), Options{Socket: "/nowhere.sock", Proxy: proxy.Options{MemoryBytes: proxy.LeastMemory}}))(t)
	if _, _, err := d.owner(t.Context(), 0, netip.MustParseAddrPort("127.0.0.1:1")); !errors.Is(err, handover.ErrNoAgent) {
		t.Errorf("got %v", err)
	}
}
