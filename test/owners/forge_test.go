package owners

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// sink takes connections at a port that it tells, and keeps them.
func sink([]string) error {
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	var all []net.Conn
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		all = append(all, c)
		if len(all) > 1000 {
			return fmt.Errorf("%d connections", len(all))
		}
	}
}

// rounds is how often each thing is tried.
const rounds = 20

// forge makes connections and tells of each kind whether all of them were
// refused. Its arguments are the scheduler that a job has, where its worker
// listens, and an address of nobody's job.
func forge(args []string) error {
	scheduler, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	worker, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	tell := func(what, to string, say []byte) {
		for range rounds {
			if err := refused(to, say); err != nil {
				fmt.Println(what, err)
				return
			}
		}
		fmt.Println(what, "refused")
	}
	tell("table", args[1], opening(pslite.SchedulerID, table(scheduler, worker)))
	for i := range 2 {
		tell(fmt.Sprint("server", i), args[1], opening(pslite.ServerID(i), answer()))
	}
	if err := refused(args[2], []byte("hello")); err != nil {
		fmt.Println("foreign", err)
	} else {
		fmt.Println("foreign refused")
	}
	return nil
}

// refused returns nil if a connection ends by a reset, or cannot be made, after
// something was said on it.
func refused(to string, say []byte) error {
	c, err := net.Dial("tcp", to)
	if err != nil {
		return nil
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(say); err != nil {
		return nil
	}
	for b := make([]byte, 4096); ; {
		if _, err := c.Read(b); err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				return fmt.Errorf("is open after %v", tenantPatience)
			}
			return nil
		}
	}
}

// opening is what a connection begins with, in the name of a node.
func opening(id int32, meta *pslite.Meta) []byte {
	greeting := zmtp.NewGreeting(0, 3)
	b := zmtp.AppendReady(greeting[:], "DEALER", pslite.AppendIdentity(nil, id))
	body := meta.Append(nil, pslite.DMLC)
	return slices.Concat(b, zmtp.AppendHeader(nil, zmtp.FrameHeader(len(body), false)), body)
}

// table is a job's, with servers where nobody is.
func table(scheduler, worker netip.AddrPort) *pslite.Meta {
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	node := func(id int32, at netip.AddrPort) {
		role, _, _ := pslite.Rank(id)
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{Role: role, ID: id, Hostname: at.Addr().String(), Port: int32(at.Port())})
	}
	node(pslite.SchedulerID, scheduler)
	node(pslite.WorkerID(0), worker)
	for i := range 64 {
		node(pslite.ServerID(i), netip.AddrPortFrom(scheduler.Addr(), uint16(1+i)))
	}
	return &m
}

// answer is one to a push that a worker may have made.
func answer() *pslite.Meta { return &pslite.Meta{Push: true, Timestamp: 7, Head: 0} }
