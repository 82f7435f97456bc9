package planner

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/page"
)

// A planner is to be asked while it serves, and while it knows where another serves
// to which it can send on.
func TestReadinessByLead(t *testing.T) {
	reports, front := listen(t), page.Server{Listener: listen(t), Guard: page.NewGuard()}
	defer reports.Close()
	defer front.Listener.Close()
	l, err := newLead(&Shared{Namespace: "ns", Lease: "lease", Config: &rest.Config{}, Advertise: netip.MustParseAddr("127.0.0.1")}, reports, front)
	if err != nil {
		t.Fatal(err)
	}
	unready := func(want string) {
		t.Helper()
		if err := l.unready(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("not ready: %v, want %q", err, want)
		}
	}
	unready("not known yet")
	other := standbyAddress{Reports: netip.MustParseAddrPort("192.0.2.7:9811"), PagePort: 9812}
	l.setLeader(other.Identity("other"))
	unready("")
	if at := l.elsewhere(); at.Reports != other.Reports || at.Page() != netip.MustParseAddrPort("192.0.2.7:9812") {
		t.Errorf("the leader is at %+v", at)
	}
	l.setLeader("one that does not say where it is")
	unready("standby planner: one that does not say")
	l.setLeader(l.address.Identity("what ran at this address before"))
	if at := l.elsewhere(); at.Reports.IsValid() {
		t.Errorf("it sends on to itself, %+v", at)
	}
	l.setLeader(l.campaign.Identity)
	unready("takes the lead over")
	l.setServing()
	unready("")
}

// While no leader is known, connections that say nothing make room for others, as they do at the
// leader.
func TestSilentConnectionsWithoutLeader(t *testing.T) {
	reports := listen(t)
	defer reports.Close()
	l, err := newLead(&Shared{Namespace: "ns", Lease: "lease", Config: &rest.Config{}}, reports, page.Server{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Planner{opts: Options{Reports: reports, Policy: &control.Policy{}}, opening: handshake.New(8, 4), lead: l}
	stop := p.forward()
	defer stop()
	for range 20 {
		c, err := net.Dial("tcp", reports.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for end := time.Now().Add(time.Minute); p.opening.Dropped() < 16; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d silent connections were reset, want 16", p.opening.Dropped())
		}
	}
}
