package faults

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// forgedServers is how many servers a forged job has.
const forgedServers = 4096

// forge is a process of a host, whose address is its argument, that makes jobs
// out of nothing until its input ends: each time another port is a scheduler's,
// which tells a node of thousands of servers. It prints the node's port, and at
// the end how many tables went on to it, and how many were refused.
func forge(args []string) error {
	own, err := netip.ParseAddr(args[0])
	if err != nil {
		return err
	}
	node, err := net.Listen("tcp4", netip.AddrPortFrom(own, 0).String())
	if err != nil {
		return err
	}
	at := node.Addr().(*net.TCPAddr).AddrPort()
	fmt.Println(at.Port())
	go swallow(node, len(opening(table(netip.AddrPortFrom(own, 50000), at))))
	var over atomic.Bool
	var told, refused atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ; !over.Load(); time.Sleep(100 * time.Millisecond) { // not to take both cores
				if err := forgeJob(own, at); err != nil {
					refused.Add(1)
				} else {
					told.Add(1)
				}
			}
		})
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	over.Store(true)
	all.Wait()
	fmt.Println(told.Load(), refused.Load())
	return nil
}

// swallow ends each connection after n bytes, and prints that first.
func swallow(l net.Listener, bytes int) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if _, err := io.CopyN(io.Discard, c, int64(bytes)); err == nil {
				c.Write([]byte{1})
			}
		}()
	}
}

// forgeJob is an error where the node did not get the table.
func forgeJob(own netip.Addr, node netip.AddrPort) error {
	scheduler, err := net.Listen("tcp4", netip.AddrPortFrom(own, 0).String())
	if err != nil {
		return err
	}
	defer scheduler.Close()
	// A process that has not connected to it has no such scheduler.
	up, err := net.Dial("tcp4", scheduler.Addr().String())
	if err != nil {
		return err
	}
	defer up.Close()
	c, err := net.Dial("tcp4", node.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(opening(table(scheduler.Addr().(*net.TCPAddr).AddrPort(), node))); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// opening is what a scheduler's connection begins with.
func opening(meta *pslite.Meta) []byte {
	greeting := zmtp.NewGreeting(0, 3)
	b := zmtp.AppendReady(greeting[:], "DEALER", pslite.AppendIdentity(nil, pslite.SchedulerID))
	body := meta.Append(nil, pslite.DMLC)
	return append(append(b, zmtp.AppendHeader(nil, zmtp.FrameHeader(len(body), false))...), body...)
}

// table is the node table of a job with servers where nobody is.
func table(scheduler, worker netip.AddrPort) *pslite.Meta {
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	node := func(id int32, at netip.AddrPort) {
		role, _, _ := pslite.Rank(id)
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{Role: role, ID: id, Hostname: at.Addr().String(), Port: int32(at.Port())})
	}
	node(pslite.SchedulerID, scheduler)
	node(pslite.WorkerID(0), worker)
	for i := range forgedServers {
		node(pslite.ServerID(i), netip.AddrPortFrom(scheduler.Addr(), uint16(20000+i)))
	}
	return &m
}
