package proxy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// costWay is what lies between two hosts, with a job of its own: scheduler and
// worker on the first, the servers on the second.
type costWay struct {
	name   string
	open   func(b *testing.B, w *costWay) // starts what lies between
	bin    string                         // psidecar
	flags  []string                       // of psidecar
	placed func(b *testing.B) string      // a placement, if not nil

	hosts  []*hosts.Host
	port   int   // the first of this way's
	pids   []int // of what lies between
	worker *hoststest.Child
	others *hoststest.Child
}

func costWays() []*costWay {
	return []*costWay{
		{name: "direct", open: func(*testing.B, *costWay) {}},
		{name: "splice", open: spliceBetween},
		{name: "haproxy", open: haproxyBetween},
		{name: "none", open: psidecarBetween, flags: []string{"--codec", "none"}},
		{name: "compact", open: psidecarBetween, flags: []string{"--codec", "compact"}},
		{name: "threshold", open: psidecarBetween, flags: []string{"--threshold", "0.99", "--threshold-unpulled", "--handler", "add"}},
		{name: "router", open: psidecarBetween, flags: []string{"--codec", "none"}, placed: placedElsewhere},
		{name: "displaced", open: psidecarBetween, flags: []string{"--codec", "none"}, placed: placedSome},
	}
}

// Ports of a way: its nodes', its mesh port, and, from portVia on, one on each host
// for each node, and, from portBetween on, the second hop's.
const (
	portScheduler = iota
	portWorker
	portServer  // and of the second one
	portMesh    = portServer + costServers
	portVia     = 10
	portBetween = 20
	portsOfWay  = 30
	firstPort   = 11000
)

// nodes are the job's, with the host of each.
func (w *costWay) nodes() (all []costNode, on []int) {
	all, on = []costNode{{pslite.Scheduler, w.port + portScheduler}, {pslite.Worker, w.port + portWorker}}, []int{0, 0}
	for i := range costServers {
		all, on = append(all, costNode{pslite.Server, w.port + portServer + i}), append(on, 1)
	}
	return all, on
}

func (w *costWay) at(host, port int) string {
	return netip.AddrPortFrom(w.hosts[host].IPv4, uint16(port)).String()
}

// forwards calls use for each way that a host's connections to a node take: what
// they connect to, the node's address and its host.
func (w *costWay) forwards(from int, use func(i int, listen, node string, to int)) {
	nodes, on := w.nodes()
	for i, n := range nodes {
		use(i, w.at(from, w.port+portVia+i), w.at(on[i], n.Port), on[i])
	}
}

// startJob starts the nodes and waits until they know each other.
func (w *costWay) startJob(b *testing.B) {
	nodes, on := w.nodes()
	var both [2]*hoststest.Child
	for host := range both {
		j := costJob{Host: w.hosts[host].IPv4.String(), Root: w.hosts[0].IPv4.String(), Port: w.port + portScheduler, Via: map[string]string{}}
		for i, n := range nodes {
			if on[i] == host {
				j.Nodes = append(j.Nodes, n)
			}
		}
		if len(w.pids) > 0 {
			w.forwards(host, func(_ int, listen, node string, _ int) { j.Via[node] = listen })
		}
		both[host] = hoststest.Start(b, w.hosts[host], fmt.Sprintf("job-%s", w.name), hoststest.Task("nodes"))
		both[host].Tell(j)
	}
	for _, c := range both {
		if said := c.Line(); said != "ready" {
			b.Fatalf("%s: the job says %q", w.name, said)
		}
	}
	w.worker, w.others = both[0], both[1]
}

// used is the processor time of what lies between, so far.
func (w *costWay) used(b *testing.B) (sum time.Duration) {
	for _, pid := range w.pids {
		var t unix.Timespec
		// The clock of a process, user and system: see clock_getcpuclockid(3).
		if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
			b.Fatalf("%s: the processor time of process %d: %v", w.name, pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum
}

// run has a program run on a host, and counts its processor time.
func (w *costWay) run(b *testing.B, host int, cmd *exec.Cmd) *hoststest.Child {
	c := hoststest.Start(b, w.hosts[host], "by-"+w.name, cmd)
	w.pids = append(w.pids, c.Pid())
	return c
}

func spliceBetween(b *testing.B, w *costWay) {
	hops := w.hops()
	for host := range w.hosts {
		var args []string
		for _, h := range hops[host] {
			args = append(args, h[0]+"="+h[1])
		}
		if said := w.run(b, host, hoststest.Task("splicing", args...)).Line(); said != "ready" {
			b.Fatalf("the relay says %q", said)
		}
	}
}

// hops are the listeners of each host and where each leads: from a host to a node
// over both hosts' relays.
func (w *costWay) hops() (all [2][][2]string) {
	for from := range w.hosts {
		w.forwards(from, func(i int, listen, node string, to int) {
			next := node
			if to != from {
				next = w.at(to, w.port+portBetween+i)
				all[to] = append(all[to], [2]string{next, node})
			}
			all[from] = append(all[from], [2]string{listen, next})
		})
	}
	return all
}

func haproxyBetween(b *testing.B, w *costWay) {
	bin := require.Program(b, "haproxy")
	for host, hops := range w.hops() {
		text := haproxyDefaults
		for i, h := range hops {
			text += haproxyHop(i, h[0], h[1])
		}
		config := filepath.Join(b.TempDir(), "haproxy.cfg")
		require.NoError(b, os.WriteFile(config, []byte(text), 0o600))
		w.run(b, host, exec.Command(bin, "-db", "-q", "-f", config))
		w.await(b, host)
	}
}

func psidecarBetween(b *testing.B, w *costWay) {
	placement := []string{}
	if w.placed != nil {
		placement = []string{"--placement", w.placed(b)}
	}
	for host := range w.hosts {
		args := append([]string{"proxy", "--mesh-port", strconv.Itoa(w.port + portMesh), "--mesh-listen", w.at(host, w.port+portMesh), "--mesh-ports", "any", "--insecure",
			"--http", "", "--proxy-socket", "", "--control-socket", "", "--state-dir", b.TempDir(), "--grace", "0s", "--log-level", "error"}, w.flags...)
		args = append(args, placement...)
		w.forwards(host, func(_ int, listen, node string, _ int) { args = append(args, "--forward", listen+"="+node) })
		w.run(b, host, exec.Command(w.bin, args...))
	}
	for host := range w.hosts {
		w.await(b, host)
	}
}

// await waits until a host's listeners take connections.
func (w *costWay) await(b *testing.B, host int) {
	require.Await(b, "listeners of "+w.hosts[host].Name, func() (last error) {
		w.forwards(host, func(_ int, listen, _ string, _ int) {
			c, err := w.hosts[host].Dial(b.Context(), "tcp", listen)
			if err != nil {
				last = err
				return
			}
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		})
		return last
	})
}

// placedElsewhere is a placement of keys that no push has.
func placedElsewhere(b *testing.B) string {
	return hoststest.WritePlacement(b, b.TempDir(), []int{0, 1}, []uint64{1 << 40, 1<<40 + 1}, []int32{0, 1})
}

// placedSome is one of a tenth of the pushes' keys, on the other server.
func placedSome(b *testing.B) string {
	var keys []uint64
	var owners []int32
	for k := range uint64(costSpread * (costSizes[len(costSizes)-1] / 12)) {
		if isDisplaced(k) {
			keys, owners = append(keys, k), append(owners, 1)
		}
	}
	return hoststest.WritePlacement(b, b.TempDir(), []int{0, 1}, keys, owners)
}

// String is for the table.
func (w *costWay) String() string {
	return map[string]string{
		"direct": "no proxy", "splice": "splicing relay", "haproxy": "haproxy", "none": "`--codec none`", "compact": "`compact`",
		"threshold": "`--threshold 0.99`", "router": "`none`, router on", "displaced": "`none`, a tenth of the keys displaced",
	}[w.name]
}
