package faults

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Most of each push waits in proxies that are replaced and killed, of servers of
// which nobody said that they add up what they get. What waits goes to the next
// proxy, and with the workers' own pushes once the threshold is taken away: the
// servers have the very sums that they have without proxies.
func TestWhatWaitsWhileProxiesAreReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{proxyArgs: []string{"--insecure", "--threshold", "0.9"}, grace: 10 * time.Second, keep: 15 * time.Second})
	counting := f.counting(1500, resending...)
	counting.Workers[0] = append(counting.Workers[0], "--count-late", "--count-batch", "300")
	counting.Workers = hosts.Repeat(4, counting.Workers[0])
	want := direct(t, counting)
	r := f.start(counting)
	r.training()
	for _, s := range f.sidecars {
		f.waits(s)
	}
	for _, s := range f.sidecars[:2] {
		f.replace(s, s.proxy)
		r.through(s)
		f.inOrder(s)
		f.await("what waited on "+s.host.Name, func() error {
			if !s.proxy.logged("restored the residuals") {
				return fmt.Errorf("the next proxy has not taken it up")
			}
			return nil
		})
	}
	for _, s := range f.sidecars[2:] {
		s.proxy.kill()
		f.ready(s)
		f.await("what waited on "+s.host.Name+" when its proxy was killed", func() error {
			if !s.proxy.logged("restored the residuals") {
				return fmt.Errorf("the next proxy has not taken it up")
			}
			return nil
		})
	}
	for _, s := range f.sidecars {
		f.order(s, http.MethodPut, "/api/v1/codecs", "[]")
	}
	if r.over() {
		t.Fatalf("the job has ended before the threshold was taken away: %v", r.err)
	}
	if <-r.ended; r.err != nil {
		t.Fatal(r.err)
	}
	if got := digests(t, r.Running); !maps.Equal(got, want) {
		t.Errorf("the servers' digests are %v, want %v", got, want)
	}
	for _, s := range f.sidecars {
		if n := f.values(s).Reasons[values.ReasonFlushed]; n > 0 {
			t.Errorf("the proxy on %s made %d pushes that no worker made", s.host.Name, n)
		}
	}
	f.asBefore()
}

// direct returns the digests of a job's servers without proxies.
func direct(t *testing.T, j hosts.Job) map[int]string {
	t.Helper()
	j.Hosts = hoststest.New(t, hosts.Config{Hosts: len(j.Hosts)}).Hosts()
	running := require.Value(j.Start(t.Context()))(t)
	require.NoError(t, running.Wait())
	return digests(t, running)
}

// waits waits until pushes go under a threshold on a host.
func (f *fleet) waits(s *sidecar) {
	f.t.Helper()
	f.await("pushes that wait on "+s.host.Name, func() error {
		for _, form := range f.values(s).Forms {
			if form.Form == "threshold" && form.Layers > 50 {
				return nil
			}
		}
		return fmt.Errorf("%+v", f.values(s))
	})
}

// values is what a proxy says of its codec for values.
func (f *fleet) values(s *sidecar) (v proxy.ValuesState) {
	f.t.Helper()
	text, err := hoststest.Get(s.host, proxyHTTP, "/api/v1/codecs")
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	require.NoError(f.t, err)
	return v
}

// order tells a proxy something over its control socket.
func (f *fleet) order(s *sidecar, method, path, text string) {
	f.t.Helper()
	request := require.Value(http.NewRequestWithContext(f.t.Context(), method, "http://control"+path, strings.NewReader(text)))(f.t)
	response := require.Value(control.Client(filepath.Join(filepath.Dir(s.socket), "state", "control.sock")).Do(request))(f.t)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		f.t.Fatalf("%s %s: %s", method, path, response.Status)
	}
}
