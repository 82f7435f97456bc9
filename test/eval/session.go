package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/eval/translate"
)

// A session trains a model synchronously in this process. Workers and a server of psjob
// exchange messages that go through the proxies' codec as they would over a link, without
// sockets, in one goroutine: a worker's step is over before the next worker's begins. So runs
// are exact repetitions, and the codec's time can be measured apart.
//
// It is used by one goroutine at a time. Its models are not copied, so that a session can be
// run again with other rules; each run begins with a new server.
type session struct {
	models   []model.Model // of each worker
	test     model.Model   // nil: none
	settings kv.StoreSettings
	batch    int // samples of a worker's step
	steps    int
	seed     uint64
	momentum float32 // see [model.Momentum]
	decay    float64 // power with which the learning rate falls to zero at the last step, as in [session.rate]
	rules    []values.Rule
	watch    *gradientWatch // of worker 0's gradients; nil: none
	every    int            // steps between scorings of the test data; 0: at the end only
}

// result is what came of one run of a session.
type result struct {
	train, test model.Tally
	last        model.Tally   // the test data by the servers' model once all that waited was sent, as at a job's end
	curve       []scored      // the test data, as worker 0 sees the model
	losses      []float64     // of each step: the mean over all workers' batches, before they are learned
	sent        float64       // values in a push, of all that the model has; mean
	values      int           // that all workers pushed
	pushed      traffic       // of values' frames and what took the place of messages
	pulled      traffic       // requests and answers
	bleu        float64       // of a translation's test data, as worker 0 sees the model
	taus        []float64     // what watched, if anything did
	splits      *splits       // nil: the model was in one piece
	codec       time.Duration // spent encoding and decoding pushes
}

// scored is a score of the test data after a number of steps.
type scored struct {
	step  int
	tally model.Tally
}

// with runs the session with other rules.
func (s *session) with(ctx context.Context, rules []values.Rule) (*result, error) {
	s.rules = rules
	return s.train(ctx)
}

// train runs the session: all steps, and then the scores. First the training and test data are
// scored as the workers see the model, then everything that waits is sent, and the test data
// are scored by the servers' model.
func (s *session) train(ctx context.Context) (*result, error) {
	// One codec at the workers' end of all links and one at the server's, as two hosts' proxies
	// have.
	near, err := values.New(values.Options{Compact: compact.DefaultLimits, Rules: s.rules})
	if err != nil {
		return nil, err
	}
	far, err := values.New(values.Options{Compact: compact.DefaultLimits, Rules: s.rules})
	if err != nil {
		return nil, err
	}
	server, err := kv.NewStore(s.settings)
	if err != nil {
		return nil, err
	}
	r := &result{}
	var batches, before model.Tally
	memory := relay.NewMemory(wayMemory)
	var workers []*trainee
	for i, m := range s.models {
		w := &trainee{session: s, model: m, server: server, result: r, order: rand.New(rand.NewPCG(s.seed, uint64(i))), momentum: model.Momentum{Factor: s.momentum}}
		if w.up, err = dial(near, far, uint64(2*i), fmt.Sprintf("ps%d", 9+2*i), memory); err != nil {
			return nil, err
		}
		// Links are closed at the end of the run, with what the codecs remember of them.
		defer w.up.close()
		if w.down, err = dial(far, near, uint64(2*i+1), "ps8", memory); err != nil {
			return nil, err
		}
		defer w.down.close()
		workers = append(workers, w)
	}
	for step := range s.steps {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, w := range workers {
			if err := w.learn(int32(step), &batches); err != nil {
				return nil, fmt.Errorf("step %d: %w", step, err)
			}
		}
		r.losses = append(r.losses, batches.LossSince(&before))
		if s.every > 0 && (step+1)%s.every == 0 {
			tally, err := workers[0].score(s.test, int32(step+1))
			if err != nil {
				return nil, err
			}
			r.curve = append(r.curve, scored{step + 1, tally})
		}
	}
	// Before the pushes of finish, which the codec would count too.
	r.sent = s.share(r.values, near.Counts())
	for _, w := range workers {
		tally, err := w.score(w.model, int32(s.steps))
		if err != nil {
			return nil, err
		}
		r.train.Add(tally)
	}
	if s.test == nil {
		return r, nil
	}
	if r.test, err = workers[0].score(s.test, int32(s.steps)); err != nil {
		return nil, err
	}
	if m, ok := s.test.(*translate.Model); ok {
		if r.bleu, err = workers[0].translated(m, int32(s.steps)); err != nil {
			return nil, err
		}
	}
	// Without rules the codecs send what waits along with the next pushes, which finish makes.
	for _, c := range []*values.Codec{near, far} {
		if err := c.SetRules(nil); err != nil {
			return nil, err
		}
	}
	for _, w := range workers {
		if err := w.finish(int32(s.steps)); err != nil {
			return nil, err
		}
	}
	r.last, err = workers[0].score(s.test, int32(s.steps)+1)
	return r, err
}

// rate returns a step's learning rate as a factor of the first one's: (1 - step/steps)^decay,
// Caffe's "poly", by which Slim's GoogLeNet learns with a power of 0.5.
func (s *session) rate(step int32) float32 {
	return float32(math.Pow(1-float64(step)/float64(s.steps), s.decay))
}

// share returns the share of a model's values that went in a push, in the mean, given how many
// values the job pushed in all. DCT's sparsity is defined by this: its gradients have a zero
// for each value that a batch does not use.
func (s *session) share(pushed int, c values.Counts) float64 {
	sent, all := pushed, 0
	for _, f := range c.Forms {
		if !slices.Contains([]string{"slim-pull", "unchanged", "pull-threshold", "pull-quantize"}, f.Form) {
			sent -= int(f.Values) - int(f.Sent)
		}
	}
	for _, m := range s.models {
		for _, group := range m.Groups(whole(m)) {
			all += group.Values()
		}
	}
	return float64(sent) / float64(all*s.steps)
}
