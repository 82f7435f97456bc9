package migrate

import (
	"errors"
	"fmt"
)

// turnKey is all that the outcome of a turn follows from.
type turnKey struct {
	part, what  uint32 // what: a message, or another number
	do          deed
	server, at  uint8
	lost        uint8
	own, number uint8 // how many timestamps and batches are in use
	free        bool  // whatever these are
}

// outcome is what follows from a turn.
type outcome struct {
	part    uint32
	crossed uint8
	refused bool
	numbers bool // it depends on how many timestamps and batches are in use
	effects []outgoing
	failure string
}

// outgoing is an effect, by numbers.
type outgoing struct {
	kind   kind
	to     uint8 // a server, or a server's worker
	number uint32
	fetch  bool
}

// turn lets a host or server do something. The numbers of what it begins follow
// own and number, which only some turns ask for.
func (p *parts) turn(k turnKey) *outcome {
	free := k
	free.own, free.number, free.free = 0, 0, true
	o := p.turns[free]
	switch {
	case o == nil:
	case !o.numbers:
		return o
	default:
		if o = p.turns[k]; o != nil {
			return o
		}
	}
	if p.all[k.part].kind == aServer {
		o = p.serve(k)
	} else {
		o = p.act(k)
	}
	p.turns[free] = o
	if o.numbers {
		p.turns[k] = o
	}
	return o
}

func (p *parts) serve(k turnKey) *outcome {
	s := p.all[k.part].value().(*modelServer)
	var replies []reply
	if k.do == repeats {
		replies = s.repeat()
	} else {
		m := &p.all[k.what]
		replies = s.take(int(k.at), int(m.owner), m.frames)
	}
	o := &outcome{part: p.keep(aServer, int(k.at), s, nil)}
	for _, r := range replies {
		o.effects = append(o.effects, outgoing{kind: aMessage, to: uint8(r.worker), number: p.keep(aMessage, r.worker, &wire{r.frames}, nil)})
	}
	return o
}

func (p *parts) act(k turnKey) *outcome {
	t := turn{host: p.all[k.part].value().(*host), at: int(k.at), fault: p.fault, lost: int(k.lost)}
	t.Ledger.Last = int32(k.own)
	if t.Site != nil {
		t.Site.last = uint64(k.number)
		if t.Journal.Keeps {
			t.Site.Router.Keep(&t.Journal)
		}
	}
	t.do(p, &k)
	if t.Site != nil {
		t.Site.Router.Keep(nil) // it is given again in each turn
	}
	o := &outcome{crossed: uint8(t.crossed), refused: t.refused, failure: t.failure}
	o.numbers = t.Ledger.Last != int32(k.own) || k.do == restarts || k.do == begins
	o.part = p.keep(aHost, t.at, t.host, nil)
	for _, e := range t.effects {
		switch {
		case e.tell != nil:
			o.effects = append(o.effects, outgoing{kind: aWord, number: p.keep(aWord, t.at, e.tell, nil)})
		case e.record != nil:
			o.effects = append(o.effects, outgoing{kind: aRecord, number: p.keep(aRecord, t.at, e.record, nil)})
		case e.fetch:
			o.effects = append(o.effects, outgoing{fetch: true})
		default:
			o.effects = append(o.effects, outgoing{kind: aMessage, to: uint8(e.server), number: p.keep(aMessage, t.at, &wire{e.frames}, nil)})
		}
	}
	return o
}

// do does what a turn is for.
func (t *turn) do(p *parts, k *turnKey) {
	m := &p.all[k.what]
	switch k.do {
	case takes:
		t.siteDown(int(k.server), m.frames)
	case hears:
		t.hear(*m.message)
	case learns: // that its move is recorded, or cannot be
		var err error
		if k.server != 0 {
			err = fmt.Errorf("the key belongs to another")
		}
		if t.Site != nil {
			t.Site.Recorded(m.record.Batch, err)
			t.settle()
		}
	case isTold:
		t.Site.Fetched(table([]uint8{uint8(k.what & 1), uint8(k.what >> 1)}))
		if t.Site.asked == nil && t.Site.Router.Ready() {
			t.Journal.opened(t.Site.Router)
		}
		t.settle()
	case asks:
		t.request()
	case begins:
		err := t.Site.Begin(Move{From: int32(k.at), To: int32(1 - k.at), Keys: []uint64{modelKeys[k.what]}, Handler: Adds})
		t.refused = err != nil
		t.settle()
	case expires:
		for _, x := range t.Site.inOrder() {
			if x.batch.Number == uint64(k.what) {
				t.refused = !t.Site.Expire(x.batch)
			}
		}
		t.settle()
	case drops, cuts:
		t.drop()
	case dies:
		r := t.Site.Router
		t.Guarded = !r.Table().Empty() || !r.Ready() || len(r.Holds()) > 0
		t.Site = nil
		if t.fault == forgetsOpened {
			t.Ledger.Opened = nil
		}
	case restarts:
		t.join(uint64(k.number))
	case repeats:
		t.repeat()
	case strays:
		t.stray(uint8(k.what))
	case returns:
		t.comeBack()
	}
}

// drop does what the proxy does with a job that has no connections on its host
// any more: see settleOver in package jobs.
func (t *turn) drop() {
	for _, x := range t.Site.inOrder() {
		if t.fault == dropsRecorded && x.phase == recording {
			x.phase = checking
		}
		t.Site.Drop(x.batch, errors.New("the job is over"))
	}
	t.settle()
	if t.Site.Moving() > 0 {
		t.Site.Repeat()
		t.settle()
	}
}
