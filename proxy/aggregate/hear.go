package aggregate

import (
	"net/netip"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/jobs"
)

// Hearer sees what comes for a process of this host over one connection: node tables and
// servers' answers. It implements [relay.Hearer] and is for one goroutine.
type Hearer struct {
	table       *Table
	scope       jobs.Scope // of the process
	destination netip.AddrPort
	sender      int32 // node id, from READY
	job         *job  // nil: unknown
	group       *group
	pair        *pair
	detector    pslite.Detector
	meta        pslite.Meta
	since       uint64 // of the group's batches, those from here on were opened after an answer had come over this connection
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

// known reports whether the connection is to a worker of a known job, and looks for the job. Where it
// is a server's there is a group then.
func (h *Hearer) known() bool {
	if h.job != nil {
		return true
	}
	isServer := isRole(h.sender, pslite.Server)
	if !isServer && h.sender != pslite.SchedulerID || !h.scope.Known() {
		return false
	}
	j, worker := h.table.findJob(h.scope, h.destination)
	if j == nil || !isRole(worker, pslite.Worker) {
		return false
	}
	if h.job = j; isServer {
		h.group, h.pair = h.table.meet(j, worker, h.sender)
		h.group.mu.Lock()
		h.pair.hears++
		h.since = h.group.opened + 1
		h.group.mu.Unlock()
	}
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
		h.table.takeNodeTable(h.scope, m)
		return
	}
	ack := m.Control.Cmd == pslite.Ack
	if !ack && (!m.Data() || m.Request || !m.Push) || !h.known() {
		return
	}
	if ack {
		h.job.resends.Store(true)
		return
	}
	if h.group == nil {
		return
	}
	h.group.mu.Lock()
	defer h.group.mu.Unlock()
	h.group.trial.Step(h.table.opts.now(), 1, true)
	h.group.answered(h.pair, exchangeOf(m), h.since)
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
	clear(h.group.tested) // it may be another process next time
}
