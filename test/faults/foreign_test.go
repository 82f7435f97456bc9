package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Jobs with the habits of MXNet's kvstore and of dist-lr train under a threshold of
// 99%: initial weights arrive whole, servers that count pushes get none too many and
// none too few, of the keys and lengths that they expect, and what waited comes once
// the threshold is taken away, by way of proxies that were killed while the jobs were
// at rest. The weights are right to the last bit. PSIDECAR_RESTARTS is the number of
// proxies that are replaced meanwhile.
func TestServersThatCount(t *testing.T) {
	for mode, args := range map[string][]string{
		"kvstore":   {"--keys", "8", "--width", "2000"},
		"positions": {"--keys", "6000"},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			restarts := 0
			fmt.Sscan(os.Getenv("PSIDECAR_RESTARTS"), &restarts)
			f := newFleet(t, config{proxyArgs: []string{"--insecure", "--threshold", "0.99"}, grace: 10 * time.Second, keep: 15 * time.Second})
			hold := filepath.Join(folder(t), "go")
			node := hosts.Program(append([]string{hoststest.BuildPeer(t), "--mode", mode, "--rounds", strconv.Itoa(100 + 20*restarts), "--hold", hold}, args...))
			// Its scheduler hears nothing while the workers train.
			r := f.start(hosts.Job{Scheduler: node, Servers: hosts.Repeat(4, node), Workers: hosts.Repeat(4, node), Hosts: f.net.Hosts(),
				Env: []string{fmt.Sprint("PEER_TIMEOUT=", int(mayTake.Seconds()))}})
			r.training()
			for i := range restarts {
				s := f.sidecars[i%len(f.sidecars)]
				f.replace(s, s.proxy)
				r.through(s)
				f.inOrder(s)
				if r.over() {
					t.Fatalf("the job has ended: %v\n%s", r.err, r.stderr())
				}
			}
			if restarts > 0 {
				t.Logf("after %d restarts: %s", restarts, tail(r.Workers[0].Stderr.String(), 1))
			}
			r.pushed()
			layers := uint64(0)
			for _, s := range f.sidecars {
				v := f.values(s)
				for _, form := range v.Forms {
					if form.Form == "threshold" {
						layers += form.Layers
					}
				}
				if n := v.Reasons[values.ReasonFlushed]; n > 0 {
					t.Errorf("the proxy on %s made %d pushes that no worker made", s.host.Name, n)
				}
			}
			waited := 0
			for _, s := range f.sidecars {
				waited += r.killAtRest(s)
				f.order(s, http.MethodPut, "/api/v1/codecs", "[]")
			}
			if layers == 0 && restarts == 0 { // else it was before, by other proxies
				t.Error("nothing went under the threshold")
			}
			if waited == 0 && restarts == 0 {
				t.Error("nothing waited when the proxies were killed")
			}
			require.NoError(t, os.WriteFile(hold, nil, 0o600))
			if <-r.ended; r.err != nil {
				t.Fatalf("%v\n%s", r.err, r.stderr())
			}
			for _, n := range r.Workers {
				var w hoststest.PeerWorker
				if err := json.Unmarshal(n.Stdout.Bytes(), &w); err != nil || w.Wrong != 0 {
					t.Errorf("worker %d: %+v, %v", n.Index, w, err)
				}
			}
			f.asBefore()
		})
	}
}

// killAtRest kills a proxy while no request is under way, waits for what the next one has
// taken up, and returns how many values that is. It may be none: a proxy that ends in
// order holds less and less back.
func (r *run) killAtRest(s *sidecar) (waited int) {
	f := r.f
	f.t.Helper()
	old := s.proxy.Current()
	waited = f.values(s).Waiting
	s.proxy.kill()
	<-old.Done()
	f.await("the next "+s.proxy.String(), func() error { return s.proxy.runs(old) })
	f.ready(s)
	r.through(s)
	f.await(fmt.Sprintf("the %d values of the proxy that was killed", waited), func() error {
		if now := f.values(s).Waiting; now != waited {
			return fmt.Errorf("%s has %d", s.proxy, now)
		}
		return nil
	})
	return waited
}

// pushed waits until all workers have pushed all gradients, as long as they make
// rounds.
func (r *run) pushed() {
	r.f.t.Helper()
	for said := ""; ; {
		var now string
		done := true
		for _, n := range r.Workers {
			text := n.Stderr.String()
			done = done && strings.Contains(text, "waits for")
			now += tail(text, 1)
		}
		if done {
			return
		}
		said = now
		r.f.await("gradients to be pushed", func() error {
			if r.over() {
				r.f.t.Fatalf("the job has ended: %v\n%s", r.err, r.stderr())
			}
			now = ""
			for _, n := range r.Workers {
				now += tail(n.Stderr.String(), 1)
			}
			if now == said {
				return fmt.Errorf("no worker has come further than %s", said)
			}
			return nil
		})
	}
}

// stderr is the end of what each node says.
func (r *run) stderr() string {
	var b strings.Builder
	for _, n := range r.Nodes() {
		fmt.Fprintf(&b, "%s %d: %v: %s\n", n.Role, n.Index, n.Err, tail(n.Stderr.String(), 3))
	}
	return b.String()
}
