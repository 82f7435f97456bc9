// Package codecrules turns codecs on, changes them and turns them off by the
// planner while a job runs across hosts.
package codecrules

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/codecs"
	"github.com/psidecar/psidecar/test/hosts"
	"github.com/psidecar/psidecar/test/hosts/hoststest"
	"github.com/psidecar/psidecar/test/job"
	"github.com/psidecar/psidecar/test/sidecar"
)

const patience = 30 * time.Second

// fleet is sidecars of which the first has the planner.
type fleet struct {
	t        *testing.T
	net      *hosts.Net
	program  string
	sidecars []*sidecar.Sidecar
	job      string
}

// plan runs psidecar plan codecs on the planner's host and returns what it
// printed.
func (f *fleet) plan(args ...string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.program, append(append([]string{"plan", "codecs"}, args...), "--job", f.job, "--planner", f.planner())...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := f.sidecars[0].Host.Run(ctx, cmd); err != nil {
		f.t.Fatalf("psidecar plan codecs %v: %v\n%s", args, err, out.String())
	}
	return out.String()
}

func (f *fleet) planner() string {
	return net.JoinHostPort(f.sidecars[0].Host.IPv4.String(), strconv.Itoa(sidecar.Planner))
}

// sums are what all proxies counted.
type sums struct {
	messages uint64 // away from the host, by link
	payload  uint64 // over all links
	coded    values.FormCount
	quantize uint64
}

func (f *fleet) sums() (s sums) {
	f.t.Helper()
	for _, c := range f.sidecars {
		state, err := c.Connections(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		for _, c := range state.Connections {
			s.messages += c.ToFar.Messages
		}
		for _, form := range state.Values.Forms {
			switch form.Form {
			case "threshold":
				s.coded.Layers += form.Layers
				s.coded.Bytes += form.Bytes
				s.coded.Encoded += form.Encoded
			case "quantize":
				s.quantize += form.Layers
			}
		}
	}
	traffic, err := f.net.Traffic()
	if err != nil {
		f.t.Fatal(err)
	}
	for from := range traffic {
		for to := range traffic[from] {
			s.payload += traffic[from][to].Payload
		}
	}
	return s
}

// during waits for so many messages and returns the bytes over the links for
// each of them, and the layers that were under the threshold.
func (f *fleet) during(messages uint64) (bytes float64, layers uint64) {
	f.t.Helper()
	before := f.sums()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		now := f.sums()
		if n := now.messages - before.messages; n >= messages {
			return float64(now.payload-before.payload) / float64(n), now.coded.Layers - before.coded.Layers
		}
		if time.Now().After(end) {
			f.t.Fatalf("%d messages in %v, want %d: has the job ended?", now.messages-before.messages, patience, messages)
		}
	}
}

// digests are those of the servers' sums.
func digests(reports []train.ServerReport) (all []string) {
	for _, r := range reports {
		all = append(all, r.Digest)
	}
	return all
}

// A threshold comes by the planner in the middle of a job, for some keys, then
// for all, and goes: bytes fall and rise with it. The servers end with the very
// sums that they have without sidecars.
func TestPlannerTurnsCodecsOnAndOff(t *testing.T) {
	count := []string{"--model", "count", "--count-late", "--async", "--steps", "4000", "--count-keys", "2000", "--count-batch", "400", "--value-length", "8"}
	want := digests(codecs.Run{Hosts: 2, Direct: true, Job: count}.Do(t).Servers)

	f := start(t)
	running := f.start(append(slices.Clone(count), "--count-compute", "3ms"))
	plain, layers := f.during(300)
	if layers > 0 {
		t.Fatalf("%d layers under a threshold before there is a rule", layers)
	}
	if out := f.plan("set", "--threshold", "0.98"); !strings.Contains(out, "nothing is changed") || !strings.Contains(out, `"threshold":0.98`) {
		t.Errorf("without --act it says %q", out)
	}
	if _, layers = f.during(50); layers > 0 {
		t.Error("and yet the rule holds")
	}
	if out := f.plan("set", "--threshold", "0.98", "--act"); out != "set; taken up by 2 proxies\n" {
		t.Errorf("with --act it says %q", out)
	}
	f.during(100) // thresholds find their value
	under, layers := f.during(300)
	if layers == 0 || under > plain/1.6 { // half of the messages are pulls' answers
		t.Errorf("%.0f bytes a message under the threshold, %.0f before, %d layers", under, plain, layers)
	}
	f.tries()

	// Other keys go by another rule, and these ones' as before.
	f.plan("set", "--keys", "0-9223372036854775807", "--quantize", "8", "--act")
	before := f.sums()
	f.during(100)
	if now := f.sums(); now.quantize == before.quantize || now.coded.Layers == before.coded.Layers {
		t.Errorf("with a rule for half of the keys: %+v, before %+v", now, before)
	}
	f.plan("clear", "--keys", "0-9223372036854775807", "--act")
	f.plan("set", "--off", "--act")
	f.during(300) // what waits goes out with its keys' next push
	again, _ := f.during(300)
	if again < plain*0.9 {
		t.Errorf("%.0f bytes a message after the threshold, %.0f before it", again, plain)
	}
	f.plan("clear", "--act")
	if out := f.plan("show"); !strings.Contains(out, "no rules") || strings.Count(out, "has taken them up") != 2 {
		t.Errorf("at last psidecar plan codecs show says %q", out)
	}
	t.Logf("bytes a message: %.0f plain, %.0f under a threshold of 98%%, %.0f after it", plain, under, again)
	f.end(running, want)
}

// start makes hosts with sidecars.
func start(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, net: hoststest.New(t, hosts.Config{Hosts: 2, Pairs: true}), program: job.Build(t, "cmd/psidecar")}
	for i, h := range f.net.Hosts() {
		var flags []string
		if i > 0 {
			flags = []string{"--planner", f.planner()}
		}
		f.sidecars = append(f.sidecars, sidecar.Start(t, h, f.program, "sidecar", flags...))
	}
	f.job = net.JoinHostPort(f.sidecars[0].Host.IPv4.String(), "9091")
	return f
}

func (f *fleet) start(args []string) *job.Running {
	f.t.Helper()
	psjob := append(job.Program{job.Build(f.t, "cmd/psjob"), "--json"}, args...)
	running, err := job.Job{Scheduler: psjob, Servers: job.Repeat(2, psjob), Workers: job.Repeat(2, psjob), Hosts: f.net.Hosts()}.Start(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return running
}

// end waits for the job's end and compares the sums.
func (f *fleet) end(running *job.Running, want []string) {
	f.t.Helper()
	if err := running.Wait(); err != nil {
		f.t.Fatal(err)
	}
	var reports []train.ServerReport
	for _, s := range running.Servers {
		var r train.ServerReport
		if err := json.Unmarshal(s.Stdout.Bytes(), &r); err != nil {
			f.t.Fatalf("a server printed %q: %v", s.Stdout.Bytes(), err)
		}
		reports = append(reports, r)
	}
	slices.SortFunc(reports, func(a, b train.ServerReport) int { return a.Rank - b.Rank })
	if got := digests(reports); !slices.Equal(got, want) {
		f.t.Errorf("the servers' digests are %v, want %v", got, want)
	}
	for _, s := range f.sidecars {
		s.Stop(f.t)
	}
}

// tries has codecs tried as the planner's page does, and looks at what it is
// told.
func (f *fleet) tries() {
	f.t.Helper()
	first := f.sidecars[0]
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: first.Host.Dial}}
	where := "http://" + net.JoinHostPort(first.Host.IPv4.String(), strconv.Itoa(sidecar.PlannerPage)) + "/api/v1/codecs/try?seconds=1"
	response, err := client.Post(where, "", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
		f.t.Fatalf("trying: %s, %v", response.Status, err)
	}
	var c web.Codecs
	for end := time.Now().Add(patience); c.Advice == nil || c.Advice.Hosts < 2; time.Sleep(50 * time.Millisecond) {
		if err := first.Get(f.t.Context(), sidecar.PlannerPage, "/api/v1/codecs?job="+f.job, &c); err != nil {
			f.t.Fatal(err)
		}
		if time.Now().After(end) {
			f.t.Fatalf("no advice: %+v", c)
		}
	}
	for _, row := range c.Advice.Codecs {
		if row.Codec == "threshold 0.99" && !(row.Saved > 0.2 && row.Waits > 0) || row.Codec == "compact" && row.Waits != 0 {
			f.t.Errorf("%+v", row)
		}
	}
	if len(c.Hosts) != 2 || !c.Hosts[0].Current || !c.Hosts[1].Reported || c.Advice.PushBytes == 0 {
		f.t.Errorf("%+v", c)
	}
}
