package migrate

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// Each of testdata/*.txt is one course of events, from the first message to the last.
// testdata/README.md has the commands.
func TestTranscripts(t *testing.T) {
	require.RunTranscripts(t, func(t *testing.T) func([]string, io.Writer) {
		p := newPlay(t)
		return func(words []string, out io.Writer) {
			p.said = out
			p.play(words)
		}
	})
}

// play is two hosts, each with a worker and a site, two servers that add, and a store.
// Nothing arrives unless a command says so.
type play struct {
	t       *testing.T
	said    io.Writer
	sites   [2]*Site
	servers [2]*modelServer
	mail    [2][]Message          // to each site, from the other
	asked   [2][]*route.Out       // of servers, by each site
	passed  [2]map[int32][][]byte // requests that passed as they were, by timestamp
	records [2][]*Record
}

func newPlay(t *testing.T) *play {
	p := &play{t: t}
	for i, name := range siteNames {
		r := route.New(route.NewTable(2))
		r.Open(r.Table())
		r.AddWorker(pslite.WorkerID(i), &memoryLedger{})
		p.sites[i], p.servers[i], p.passed[i] = New(name, r, 0), &modelServer{}, map[int32][][]byte{}
		p.sites[i].SetOthers(siteNames[:])
	}
	return p
}

func (p *play) printf(format string, args ...any) { fmt.Fprintf(p.said, format+"\n", args...) }

// number reads a number of a command.
func (p *play) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// play carries out a command: a verb, the site, and more.
func (p *play) play(words []string) {
	p.t.Helper()
	if words[0] == "sums" {
		p.printf("server 0 has %v of keys %v, server 1 %v", p.servers[0].Sum, modelKeys, p.servers[1].Sum)
		return
	}
	if len(words) < 2 || !slices.Contains(siteNames[:], words[1]) {
		p.t.Fatalf("%v: want a verb and a site", words)
	}
	at, rest := slices.Index(siteNames[:], words[1]), words[2:]
	s := p.sites[at]
	batch := route.Batch{Mover: s.Name(), Number: s.Last()}
	switch words[0] {
	case "push":
		p.push(at, int32(p.number(rest[0])), rest[1:])
	case "answer":
		timestamp := int32(p.number(rest[0]))
		frames := p.passed[at][timestamp]
		if frames == nil {
			p.t.Fatalf("%v: no such push has passed", words)
		}
		p.answer(at, 0, frames)
		delete(p.passed[at], timestamp)
	case "move":
		keys := []uint64{uint64(p.number(rest[0]))}
		if err := s.Begin(Move{From: int32(p.number(rest[1])), To: int32(p.number(rest[2])), Keys: keys, Handler: Adds}); err != nil {
			p.printf("%s: no move: %v", s.Name(), err)
		}
	case "hear", "lose":
		if len(p.mail[at]) == 0 {
			p.t.Fatalf("%v: nothing is on its way", words)
		}
		m := p.mail[at][0]
		p.mail[at] = p.mail[at][1:]
		if words[0] == "hear" {
			s.Receive(siteNames[1-at], m)
		}
	case "serve":
		asked := p.asked[at]
		p.asked[at] = nil
		for _, o := range asked {
			p.answer(at, int(o.Server), o.Frames)
		}
	case "record", "refuse":
		r := p.records[at][0]
		p.records[at] = p.records[at][1:]
		var err error
		if words[0] == "refuse" {
			err = errors.New("another plan has them")
		}
		s.Recorded(r.Batch, err)
	case "expire":
		if !s.Expire(batch) {
			p.printf("%s: it goes on", s.Name())
		}
	case "repeat":
		s.Repeat()
	case "restart":
		p.restart(at)
	case "table":
		p.sites[at].Fetched(p.sites[1-at].Router.Table().Clone())
	default:
		p.t.Fatalf("%v: unknown", words)
	}
	p.collect(at)
}

// restart puts a site that knows nothing in the place of one that was killed. The worker
// and its ledger are new as well.
func (p *play) restart(at int) {
	r := route.New(route.NewTable(2))
	r.AddWorker(pslite.WorkerID(at), &memoryLedger{})
	p.sites[at] = New(siteNames[at], r, 100)
	p.sites[at].SetOthers(siteNames[:])
	p.mail[at], p.asked[at], p.records[at] = nil, nil, nil
	p.sites[at].Join()
}

// push has a worker push 1 for each of the keys, which are at home with server 0.
func (p *play) push(at int, timestamp int32, texts []string) {
	var keys []uint64
	var ones []float32
	for _, text := range texts {
		keys, ones = append(keys, uint64(p.number(text))), append(ones, 1)
	}
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push, m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp = true, true, 0, 0, timestamp
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, keys), pslite.AppendFloat32(nil, ones)}
	s, id := p.sites[at], pslite.WorkerID(at)
	if s.Router.Request(id, 0, &m.Meta, m.Keys(), pslite.DMLC) {
		p.passed[at][timestamp] = append([][]byte{m.Meta.Append(nil, pslite.DMLC)}, m.Data...)
		p.printf("%s: push %d passes", s.Name(), timestamp)
		return
	}
	p.printf("%s: push %d is taken by the router", s.Name(), timestamp)
	if err := s.Router.Take(id, 0, &m, pslite.DMLC); err != nil {
		p.t.Fatal(err)
	}
}

// answer has a server take a message of a site's worker, and the site the answer.
func (p *play) answer(at, server int, frames [][]byte) {
	s, id := p.sites[at], pslite.WorkerID(at)
	for _, reply := range p.servers[server].take(server, at, frames) {
		m := decode(reply.frames)
		if s.Router.Answer(int32(server), id, &m.Meta) {
			p.printf("%s: the answer of server %d to %d passes", s.Name(), server, m.Meta.Timestamp)
		} else if err := s.Router.TakeAnswer(int32(server), id, m, pslite.DMLC); err != nil {
			p.t.Fatal(err)
		}
	}
}

// collect notes what a site has to say and do.
func (p *play) collect(at int) {
	name := siteNames[at]
	for _, o := range p.sites[at].Out() {
		switch {
		case o.Send != nil:
			other := slices.Index(siteNames[:], o.To)
			p.mail[other] = append(p.mail[other], *o.Send)
			p.printf("%s tells %s: %s", name, o.To, textOf(o.Send))
		case o.Record != nil:
			p.records[at] = append(p.records[at], o.Record)
			p.printf("%s asks the store: %s with server %d now, no longer with %d", name, keysText(o.Record.Keys), o.Record.To, o.Record.From)
		case o.Result != nil && o.Result.Err != nil:
			p.printf("%s: the move is given up: %v", name, o.Result.Err)
		case o.Result != nil:
			p.printf("%s: the move is done", name)
		case o.Fetch:
			p.printf("%s asks the store where keys are", name)
		case o.Route.ToWorker:
			p.printf("%s: the worker gets the answer to %d", name, decode(o.Route.Frames).Meta.Timestamp)
		default:
			p.asked[at] = append(p.asked[at], o.Route)
			p.printf("%s to server %d: %s", name, o.Route.Server, requestText(o.Route.Frames))
		}
	}
}

// textOf writes a message between sites.
func textOf(m *Message) string {
	text := [...]string{Join: "join", Holding: "holding", Hold: "hold", Quiet: "quiet", Release: "release"}[m.Kind]
	if m.Batch.Mover != "" {
		text += fmt.Sprintf(" %s/%d", m.Batch.Mover, m.Batch.Number)
	}
	if len(m.Keys) > 0 {
		text += " " + keysText(m.Keys)
	}
	if m.Kind == Release && m.Owner != route.Unchanged {
		text += fmt.Sprintf(", with server %d now", m.Owner)
	} else if m.Kind == Release {
		text += ", where they were"
	}
	for _, h := range m.Held {
		text += fmt.Sprintf(", %s held for %s/%d", keysText(h.Keys), h.Batch.Mover, h.Batch.Number)
	}
	return text
}

// keysText writes ranges of keys.
func keysText(ranges []plan.Keys) string {
	var all []string
	for _, k := range ranges {
		if all = append(all, fmt.Sprint(k.First)); k.Last != k.First {
			all[len(all)-1] += fmt.Sprintf("-%d", k.Last)
		}
	}
	return "keys " + strings.Join(all, ",")
}

// requestText writes a request: of a worker, or of the site's own.
func requestText(frames [][]byte) string {
	m := decode(frames)
	verb := "pull"
	if m.Meta.Push {
		verb = "push"
	}
	whose := fmt.Sprintf("of request %d", m.Meta.Timestamp)
	if m.Meta.Timestamp >= route.FirstOwn {
		whose = "of the router's own"
	}
	var keys []uint64
	for i := range m.Keys().Len() {
		keys = append(keys, m.Keys().At(i))
	}
	text := fmt.Sprintf("%s %v, %s", verb, keys, whose)
	if m.Meta.Push {
		var all []float32
		for i := range keys {
			all = append(all, m.Values().Float32(i))
		}
		text += fmt.Sprintf(", values %v", all)
	}
	return text
}
