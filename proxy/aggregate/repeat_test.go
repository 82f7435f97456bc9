package aggregate

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// lose is what PS_RESEND does at the server with a push that arrives: the first is acknowledged and
// applied, the others are acknowledged. It returns true where the push goes no further. Some are
// lost before.
func (w *world) lose(k *worker, m flight) bool {
	if !w.calm && w.rng.IntN(8) == 0 {
		w.note("the server loses worker %d ts %d", k.id, m.ts)
		return true
	}
	var d pslite.Message
	if _, err := d.Decode(new(pslite.Detector), m.frames); err != nil {
		w.t.Fatal(err)
	}
	var ack pslite.Meta
	ack.Reset()
	ack.Control = pslite.Control{Cmd: pslite.Ack, MsgSig: pslite.Signature(&d.Meta, k.id, 8)}
	if w.foreign {
		ack.Control.MsgSig++
	}
	k.back = append(k.back, answer{of: m.sent, meta: ack.Append(nil, pslite.DMLC), isAck: true})
	if m.there {
		w.note("the server has worker %d ts %d already", k.id, m.ts)
	}
	return m.there
}

// repeat has a worker repeat a push that was not acknowledged, or the server an answer that the worker has
// not got.
func (w *world) repeat(k *worker) {
	if len(k.mine) > 0 {
		w.repeatOne(k, k.mine[w.rng.IntN(len(k.mine))])
	}
}

func (w *world) repeatOne(k *worker, m *sent) {
	for _, o := range k.messages {
		if o == m { // it has not left the worker yet
			return
		}
	}
	if !m.acked {
		w.note("worker %d repeats ts %d", k.id, m.ts)
		k.messages = append(k.messages, m)
	}
	if m.there && !m.done && !w.waits {
		k.back = append(k.back, answer{of: m, meta: meta(m.ts, false, true)})
	}
}

// kill has another proxy take the place of one that is killed; if it ends, one that sums nothing.
func (w *world) kill(ends bool) {
	w.note("the proxy is killed; the next one sums nothing: %v", ends)
	w.past.addCounts(w.group.figures())
	for _, k := range w.workers {
		if !k.down {
			w.cut(k)
		}
	}
	w.start(w.table.opts.Wait, ends)
	for _, k := range w.workers {
		w.listen(k)
	}
}

// files returns how many records of sums there are.
func (w *world) files() (n int) {
	err := filepath.WalkDir(filepath.Join(filepath.Dir(w.file), sumsDir), func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, recordExt) {
			n++
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return n
}

// Whatever is lost, cut or killed, each push of a job with PS_RESEND is applied once, heard of
// when it was, and seen by its worker's next pull. In the end nothing is kept of it.
func TestSchedulesWithRetransmissions(t *testing.T) {
	runs := uint64(1000)
	if testing.Short() {
		runs = 200
	}
	var all Counts
	restored, ended := 0, 0
	for seed := range runs {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := newWorldOf(t, seed, 2+rng.IntN(3), []time.Duration{0, 0, 30 * time.Millisecond}[rng.IntN(3)], rng.IntN(2) == 0, true)
		kills := rng.IntN(4)
		w.breaks = rng.IntN(8)
		for range 400 {
			switch {
			case w.rng.IntN(8) == 0:
				w.repeat(w.workers[w.rng.IntN(len(w.workers))])
			case kills > 0 && w.rng.IntN(60) == 0:
				kills--
				restored += w.files()
				ends := w.rng.IntN(3) == 0
				if ends && w.files() > 0 {
					ended++
				}
				w.kill(ends)
			default:
				w.step()
			}
		}
		for range 60 {
			for _, k := range w.workers {
				for _, m := range k.mine {
					if !m.done || !m.acked {
						w.repeatOne(k, m)
					}
				}
			}
			w.settleFor(5)
		}
		w.check(true)
		for _, p := range w.group.pairs {
			for e := range p.taken {
				w.fail("worker %d ts %d still counts as unanswered", p.worker, e.timestamp)
			}
		}
		if n := w.files(); n > 0 {
			w.fail("%d files are left", n)
		}
		all.addCounts(w.past)
		all.addCounts(w.group.figures())
	}
	t.Logf("%+v, %d records outlived a proxy, %d times the next one summed nothing", all, restored, ended)
	if all.Sums == 0 || all.Carried == 0 || all.Partial == 0 || all.Repeated == 0 || all.Passed[Repeats] == 0 || restored == 0 || ended == 0 {
		t.Errorf("%+v, %d records outlived a proxy: not all has been tried", all, restored)
	}
	if all.Lost > 0 {
		t.Errorf("%d pushes were given up", all.Lost)
	}
}
