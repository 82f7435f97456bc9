package migrate

import (
	"hash/maphash"
	"math/bits"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// The parts of worlds, each kept once and called by its number: hosts, servers,
// messages and queues. What a host or server does when something reaches it is
// found out once, however many worlds it happens in.

type part struct {
	kind        kind
	owner       uint8 // which host or server it is, or which worker's message
	bytes       []byte
	used, noted names
	facts       facts
	frames      [][]byte // of a message between worker and server
	ack, op     bool     // it is an acknowledgement, of one of the router's own messages
	message     *Message // between sites
	record      *Record  // to the store
}

type kind uint8

const (
	aHost kind = iota
	aServer
	aMessage
	aWord // between sites
	aRecord
)

// facts are what must be known of a host or server in every world that has it.
type facts struct {
	alive    bool
	asks     bool     // the worker can make its next request
	begins   [2]bool  // a move of that key can begin
	moving   []uint64 // batches under way
	done     bool     // all requests of the worker are answered
	over     bool     // nothing else is under way either
	owners   [2]uint8 // of the keys, as the site has it
	sums     [2]float32
	requests int        // made by the worker
	read     [2]float32 // by the worker last
	unacked  bool
	underWay int // requests
	lesson   uint8
	guarded  bool  // see host
	past     uint8 // likewise
}

// queue is messages on their way, first in, first out. The empty one is number 0.
type queue struct {
	parts []uint32
	rest  uint32 // without the first
	used  names
}

// parts are all of one search, or of some that are compared.
type parts struct {
	all     []part
	known   map[[2]uint64]uint32
	queues  []queue
	longer  map[[2]uint32]uint32 // queue and message: the queue with it
	turns   map[turnKey]*outcome
	renamed map[renaming]uint32
	exact   bool // nothing is renamed or left out
	resend  bool
	fault   fault
}

type renaming struct {
	number uint32
	queue  bool
	left   names
}

func newParts(resend, exact bool, f fault) *parts {
	return &parts{
		known: map[[2]uint64]uint32{}, queues: []queue{{}}, longer: map[[2]uint32]uint32{},
		turns: map[turnKey]*outcome{}, renamed: map[renaming]uint32{}, exact: exact, resend: resend, fault: f,
		all: []part{{}}, // number 0 is none
	}
}

// keep returns the number of a part; value is what it is.
func (p *parts) keep(k kind, owner int, value any, left *names) uint32 {
	b, used, noted := write(value, owner, left, p.exact)
	b = append(b, byte(k), byte(owner))
	digest := [2]uint64{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
	if n, ok := p.known[digest]; ok {
		return n
	}
	n := uint32(len(p.all))
	p.known[digest] = n
	x := part{kind: k, owner: uint8(owner), bytes: b[:len(b)-2], used: used, noted: noted}
	if left != nil { // what it is under its new names
		x.used, x.noted = names{}, names{}
		_, x.used, x.noted = write(x.value(), owner, nil, p.exact)
	}
	switch v := x.value().(type) {
	case *host:
		x.facts = v.facts(p.fault)
		x.facts.lesson = v.Journal.lesson(p.fault)
	case *modelServer:
		x.facts = facts{sums: v.Sum, unacked: len(v.Unacked) > 0}
	case *wire:
		x.frames = v.Frames
		meta := decode(v.Frames).Meta
		x.ack = meta.Control.Cmd == pslite.Ack
		_, timestamp := ofSignature(meta.Control.MsgSig)
		x.op = x.ack && timestamp >= route.FirstExact
	case *Message:
		x.message = v
	case *Record:
		x.record = v
	}
	p.all = append(p.all, x)
	return n
}

// wire is a message between a worker and a server.
type wire struct{ Frames [][]byte }

// value reads a part.
func (x *part) value() any {
	switch x.kind {
	case aHost:
		v := new(host)
		read(x.bytes, v)
		return v
	case aServer:
		v := new(modelServer)
		read(x.bytes, v)
		return v
	case aMessage:
		v := new(wire)
		read(x.bytes, v)
		return v
	case aWord:
		v := new(Message)
		read(x.bytes, v)
		return v
	}
	v := new(Record)
	read(x.bytes, v)
	return v
}

// push returns a queue with another message at its end.
func (p *parts) push(q, message uint32) uint32 {
	k := [2]uint32{q, message}
	if n, ok := p.longer[k]; ok {
		return n
	}
	old := p.queues[q]
	x := queue{parts: append(old.parts[:len(old.parts):len(old.parts)], message), used: old.used}
	x.used.join(&p.all[message].used)
	if len(old.parts) > 0 {
		x.rest = p.push(old.rest, message)
	}
	n := uint32(len(p.queues))
	p.queues = append(p.queues, x)
	p.longer[k] = n
	return n
}

// rename returns a part whose names are those that are left, in order.
func (p *parts) rename(number uint32, left *names) uint32 {
	x := &p.all[number]
	k := renaming{number: number}
	changes := false
	for sort := range sorts {
		all := x.used[sort] | x.noted[sort]
		k.left[sort] = left[sort] & (1<<bits.Len32(all) - 1)
		changes = changes || x.noted[sort]&^left[sort] != 0 ||
			sort < stepNames && all != 0 && k.left[sort]&(k.left[sort]+1) != 0
	}
	if !changes {
		return number
	}
	n, ok := p.renamed[k]
	if !ok {
		n = p.keep(x.kind, int(x.owner), x.value(), left)
		p.renamed[k] = n
	}
	return n
}

// renameQueue does so for all that is in a queue.
func (p *parts) renameQueue(number uint32, left *names) uint32 {
	k := renaming{number, true, *left}
	n, ok := p.renamed[k]
	if !ok {
		for _, m := range p.queues[number].parts {
			n = p.push(n, p.rename(m, left))
		}
		p.renamed[k] = n
	}
	return n
}

func (h *host) facts(fault fault) facts {
	x := h.Worker
	f := facts{alive: h.Site != nil, asks: !x.Waiting && x.Step < x.Steps, requests: x.Step, read: x.Last, unacked: len(x.Unacked) > 0}
	f.done = !x.Waiting && x.Step == x.Steps && len(x.Unacked) == 0
	f.guarded, f.past = h.Guarded, h.Past
	if h.Site == nil {
		return f
	}
	s := h.Site
	f.underWay = len(s.Router.UnderWay())
	at := workerIndex(x.ID)
	_, err := s.Router.Mover()
	for i, key := range modelKeys {
		f.owners[i] = uint8(s.Router.Table().Owner(key))
		f.begins[i] = s.asked == nil && s.Router.Ready() && err == nil && int(f.owners[i]) == at && (h.Past == 0 && !h.Unsettled || fault == asksPast)
	}
	for _, m := range s.inOrder() {
		f.moving = append(f.moving, m.batch.Number)
	}
	f.over = f.done && s.Router.Ready() && len(f.moving) == 0 &&
		len(s.Router.Holds()) == 0 && (len(h.Ledger.Opened) == 0 || h.Once)
	return f
}
