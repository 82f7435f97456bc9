package aggregate

import (
	"net/netip"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// Hearer sees what comes for a process of this host over one connection: node tables and
// servers' answers. It implements [relay.Hearer] and is for one goroutine.
type Hearer struct {
	table       *Table
	scope       jobs.Scope // of the process
	destination netip.AddrPort
	sender      int32 // node id, from READY
	isOld       bool  // a node table has come, or may have before this proxy
	group       *group
	pair        *pair
	detector    pslite.Detector
	meta        pslite.Meta
}

// Hearer returns the Hearer of a connection to a process of this host, of that scope, which
// listens at destination.
func (t *Table) Hearer(scope jobs.Scope, destination netip.AddrPort) *Hearer {
	return &Hearer{table: t, scope: scope, destination: destination, sender: pslite.Empty}
}

// Ready implements [relay.Greeter].
func (h *Hearer) Ready(r zmtp.Ready) {
	if id, ok := pslite.ParseIdentity(r.Identity); ok {
		h.sender = id
	}
}

// Continue is Ready for a connection that another proxy has begun.
func (h *Hearer) Continue(r zmtp.Ready) {
	h.Ready(r)
	h.isOld = true
}

// known reports whether the connection is that of a server to a worker, of a known job, and
// looks for the job.
func (h *Hearer) known() bool {
	if h.group != nil {
		return true
	}
	if !isRole(h.sender, pslite.Server) || !h.scope.Known() {
		return false
	}
	j, worker := h.table.findJob(h.scope, h.destination)
	if j == nil || !isRole(worker, pslite.Worker) {
		return false
	}
	h.group, h.pair = h.table.meet(j, worker, h.sender)
	h.group.mu.Lock()
	h.pair.hears++
	h.group.mu.Unlock()
	return true
}

// Hear implements [relay.Hearer]. Only answers to pushes matter, and ACKs: they show
// PS_RESEND.
func (h *Hearer) Hear(meta []byte) {
	if _, err := h.detector.Decode(meta, &h.meta); err != nil {
		return
	}
	m := &h.meta
	if m.Control.Cmd == pslite.AddNode && h.sender == pslite.SchedulerID {
		if h.table.takeNodeTable(h.scope, m) && !h.isOld {
			h.isOld = true
			h.table.restartWorker(h.scope, h.destination)
		}
		return
	}
	ack := m.Control.Cmd == pslite.Ack
	if !ack && (!m.Data() || m.Request || !m.Push) || !h.known() {
		return
	}
	h.group.mu.Lock()
	defer h.group.mu.Unlock()
	if ack {
		h.group.acknowledged(h.pair, m.Control.MsgSig)
		return
	}
	h.pair.answers++
	h.group.trial.answered(h.table.opts.now())
	h.group.answered(h.pair, exchangeOf(m))
}

// Close notes that the connection has ended: an answer may have been lost with it.
func (h *Hearer) Close() {
	if h.group == nil {
		return
	}
	h.group.mu.Lock()
	defer h.group.mu.Unlock()
	h.pair.hears--
	h.pair.breaks++
}
