package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// fixed is a State with given answers; it keeps the last question.
type fixed struct {
	jobs  []Job
	ready error
	query HeatmapQuery
	span  Range
	n     int
}

func (f *fixed) Jobs() []Job { return f.jobs }
func (f *fixed) Heatmap(job string, q HeatmapQuery) (Heatmap, error) {
	f.query = q
	return Heatmap{Job: job, Measure: q.Measure}, f.find(job)
}
func (f *fixed) Traffic(job string, r Range) (Traffic, error) {
	f.span = r
	return Traffic{Job: job}, f.find(job)
}
func (f *fixed) Keys(job string, n int) (Keys, error) { f.n = n; return Keys{Job: job}, f.find(job) }
func (f *fixed) Servers(job string, r Range) (Servers, error) {
	f.span = r
	return Servers{Job: job}, f.find(job)
}
func (f *fixed) Agent() Agent { return Agent{Host: "h"} }
func (f *fixed) Ready() error { return f.ready }
func (f *fixed) find(job string) error {
	for _, j := range f.jobs {
		if j.Name == job {
			return nil
		}
	}
	return fmt.Errorf("%w: %q", ErrNoJob, job)
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	body := require.Value(io.ReadAll(rec.Result().Body))(t)
	return rec.Code, string(body)
}

func TestStatusCodes(t *testing.T) {
	one := &fixed{jobs: []Job{{Name: "a:1"}}}
	two := &fixed{jobs: []Job{{Name: "a:1"}, {Name: "b:1"}}, ready: errors.New("programs are not attached")}
	for _, tc := range []struct {
		name, path string
		state      *fixed
		code       int
		want       string
	}{
		{"alive", "/healthz", two, 200, "ok"},
		{"ready", "/readyz", one, 200, "ready"},
		{"not ready", "/readyz", two, 503, "not attached"},
		{"page", "/", one, 200, "<title>psidecar"},
		{"no such file", "/nope.js", one, 404, ""},
		{"no such interface", "/api/v1/nope", one, 404, `"error"`},
		{"jobs", "/api/v1/jobs", one, 200, `"job":"a:1"`},
		{"no jobs are an empty list", "/api/v1/jobs", &fixed{}, 200, `{"jobs":[]}`},
		{"job by name", "/api/v1/heatmap?job=b:1", two, 200, `"job":"b:1"`},
		{"the only job", "/api/v1/heatmap", one, 200, `"workers":[],"blocks":[],"counts":[]`},
		{"which job", "/api/v1/traffic", two, 400, "a:1, b:1"},
		{"no job yet", "/api/v1/keys", &fixed{}, 404, "no job has been seen"},
		{"unknown job", "/api/v1/servers?job=x", one, 404, `no such job: \"x\"`},
		{"alpha of nothing", "/api/v1/alpha", one, 200, `"alpha":0`},
		{"bad blocks of alpha", "/api/v1/alpha?blocks=x", one, 400, "blocks"},
		{"agent", "/api/v1/agent", one, 200, `"host":"h"`},
		{"bad blocks", "/api/v1/heatmap?blocks=0", one, 400, "blocks"},
		{"too many blocks", "/api/v1/heatmap?blocks=99999", one, 400, "4096"},
		{"bad key", "/api/v1/heatmap?first=-1", one, 400, "2^64-1"},
		{"turned around", "/api/v1/heatmap?first=5&last=4", one, 400, "below"},
		{"bad measure", "/api/v1/heatmap?measure=love", one, 400, "accesses"},
		{"bad time", "/api/v1/heatmap?from=yesterday", one, 400, "seconds"},
		{"time backwards", "/api/v1/servers?from=-5&to=-10", one, 400, "before"},
		{"profiles are off", "/debug/pprof/", one, 404, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body := get(t, Handler(tc.state, Options{}), tc.path)
			if code != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("GET %s: %d %s, want %d with %q", tc.path, code, body, tc.code, tc.want)
			}
		})
	}
	if code, _ := get(t, Handler(one, Options{Pprof: true}), "/debug/pprof/"); code != 200 {
		t.Errorf("with Pprof the profiles answer %d", code)
	}
	rec := httptest.NewRecorder()
	Handler(one, Options{}).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/jobs", nil))
	if rec.Code != http.StatusMethodNotAllowed && rec.Code != http.StatusNotFound {
		t.Errorf("POST answers %d", rec.Code)
	}
}

func TestQueries(t *testing.T) {
	f := &fixed{jobs: []Job{{Name: "a:1"}}}
	h := Handler(f, Options{})
	get(t, h, "/api/v1/heatmap")
	if want := (HeatmapQuery{Blocks: 256, Last: math.MaxUint64, Measure: Accesses}); !reflect.DeepEqual(f.query, want) {
		t.Errorf("without parameters: %+v", f.query)
	}
	get(t, h, "/api/v1/heatmap?blocks=7&first=18446744073709551614&measure=bytes&from=1000.5&to=2000")
	want := HeatmapQuery{
		Blocks: 7, First: math.MaxUint64 - 1, Last: math.MaxUint64, Measure: Bytes,
		Range: Range{time.Unix(1000, 5e8), time.Unix(2000, 0)},
	}
	if !reflect.DeepEqual(f.query, want) {
		t.Errorf("%+v, want %+v", f.query, want)
	}
	before := time.Now()
	get(t, h, "/api/v1/traffic?from=-60")
	if from := f.span.From.Add(time.Minute); from.Before(before) || from.After(time.Now()) {
		t.Errorf("from=-60 is %v before now", time.Since(f.span.From))
	}
	get(t, h, "/api/v1/keys?n=9")
	if f.n != 9 {
		t.Errorf("n=9 came as %d", f.n)
	}
}

// The names that scripts rely on.
func TestHeatmapContract(t *testing.T) {
	body := require.Value(json.Marshal(Heatmap{
		Job: "j", Workers: []string{"worker0"}, Counts: [][]uint64{{3}},
		Blocks: []Block{NewBlock(1, math.MaxUint64, 2, false)},
	}))(t)
	const want = `{"job":"j","workers":["worker0"],"blocks":[{"first":1,"last":18446744073709551615,` +
		`"first_text":"1","last_text":"18446744073709551615","keys":2}],"counts":[[3]],`
	if !strings.HasPrefix(string(body), want) {
		t.Errorf("%s\nwant it to begin with\n%s", body, want)
	}
}
