package route

import (
	"fmt"
	"io"
	"strconv"
	"testing"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// Each of testdata/*.txt shows a worker's requests on their way through a router.
// testdata/README.md has the commands.
func TestTranscripts(t *testing.T) {
	require.RunTranscripts(t, func(t *testing.T) func([]string, io.Writer) {
		p := &played{t: t, router: New(NewTable(2)), passed: map[int32][][]byte{}, sent: map[int32][]Out{}}
		for i := range p.servers {
			p.servers[i] = adding{}
		}
		p.router.AddWorker(playedWorker, &forgetful{})
		return p.play
	})
}

const playedWorker = int32(9)

// played is a router, one worker and two servers that add.
type played struct {
	t       *testing.T
	router  *Router
	servers [2]adding
	passed  map[int32][][]byte // requests that passed as they were, by timestamp
	sent    map[int32][]Out    // on their way to each server
}

// play carries out a command.
func (p *played) play(words []string, out io.Writer) {
	numbers := make([]uint64, len(words)-1)
	for i, word := range words[1:] {
		var err error
		if numbers[i], err = strconv.ParseUint(word, 10, 64); err != nil {
			p.t.Fatal(err)
		}
	}
	batch := func() Batch { return Batch{"mover", numbers[0]} }
	switch words[0] {
	case "open":
		p.router.Open(p.router.Table())
	case "push", "pull":
		p.request(out, int32(numbers[0]), words[0] == "push", numbers[1:])
	case "answer":
		frames := p.passed[int32(numbers[0])]
		if frames == nil {
			p.t.Fatalf("%v: no such request has passed", words)
		}
		p.answer(out, 0, frames)
	case "serve":
		server := int32(numbers[0])
		sent := p.sent[server]
		p.sent[server] = nil
		for _, o := range sent {
			p.answer(out, server, o.Frames)
		}
	case "hold":
		var keys []plan.Keys
		for _, k := range numbers[1:] {
			keys = append(keys, plan.One(k))
		}
		if !p.router.Hold(batch(), keys) {
			fmt.Fprintln(out, "another batch has one of the keys")
		}
	case "release":
		p.router.Release(batch(), int32(numbers[1]))
	case "keep":
		p.router.Release(batch(), Unchanged)
	default:
		p.t.Fatalf("%v: unknown", words)
	}
	p.collect(out)
}

// request has the worker ask server 0, where the keys are at home.
func (p *played) request(out io.Writer, timestamp int32, push bool, keys []uint64) {
	frames := ask(pslite.DMLC, timestamp, push, !push, false, keys)
	m := decoded(p.t, frames, pslite.DMLC)
	if p.router.Request(playedWorker, 0, &m.Meta, m.Keys(), pslite.DMLC) {
		p.passed[timestamp] = frames
		fmt.Fprintf(out, "request %d passes\n", timestamp)
		return
	}
	if err := p.router.Take(playedWorker, 0, m, pslite.DMLC); err != nil {
		p.t.Fatal(err)
	}
	if waits, _ := p.router.Waiting(); waits > 0 {
		fmt.Fprintf(out, "request %d waits\n", timestamp)
	}
}

// answer has a server answer a message of the worker's or the router's.
func (p *played) answer(out io.Writer, server int32, frames [][]byte) {
	back := decoded(p.t, p.servers[server].answer(decoded(p.t, frames, pslite.DMLC), pslite.DMLC), pslite.DMLC)
	if p.router.Answer(server, playedWorker, &back.Meta) {
		fmt.Fprintf(out, "the answer to request %d passes\n", back.Meta.Timestamp)
	} else if err := p.router.TakeAnswer(server, playedWorker, back, pslite.DMLC); err != nil {
		p.t.Fatal(err)
	}
}

// collect notes what the router has to say and do.
func (p *played) collect(out io.Writer) {
	for _, o := range p.router.Out() {
		if o.Quiet != nil {
			fmt.Fprintf(out, "batch %d is quiet\n", o.Quiet.Number)
			continue
		}
		m := decoded(p.t, o.Frames, pslite.DMLC)
		text := "push"
		if m.Meta.Pull {
			text = "pull"
		}
		if len(m.Data) > 0 {
			var keys []uint64
			for i := range m.Keys().Len() {
				keys = append(keys, m.Keys().At(i))
			}
			var values []float32
			for i := range len(m.Values().Bytes) / 4 {
				values = append(values, m.Values().Float32(i))
			}
			text += fmt.Sprintf(" of keys %v, values %v", keys, values)
		}
		switch {
		case o.ToWorker:
			fmt.Fprintf(out, "to the worker, answer to request %d: %s\n", m.Meta.Timestamp, text)
		case m.Meta.Timestamp >= FirstOwn:
			p.sent[o.Server] = append(p.sent[o.Server], o)
			fmt.Fprintf(out, "to server %d, a part: %s\n", o.Server, text)
		default:
			p.sent[o.Server] = append(p.sent[o.Server], o)
			fmt.Fprintf(out, "to server %d, request %d: %s\n", o.Server, m.Meta.Timestamp, text)
		}
	}
}
