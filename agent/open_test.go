package agent

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/test/require"
)

// writeRecording writes a recording of one push to path, and returns that.
func writeRecording(t *testing.T, path, host string) string {
	t.Helper()
	var file bytes.Buffer
	w := require.Value(recording.NewWriter(&file, recording.Header{Host: host}))(t)
	require.NoError(t, w.Add(&recording.Use{Job: "10.0.0.1:9000", Worker: "worker0", Server: "server0", UnixNanos: 1e9, Push: true, Keys: []uint64{1}, Bytes: 4}))
	require.Value(w.Close(2e9, 0))(t)
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o644))
	return path
}

// Recordings of one name are told apart by their paths.
func TestOpenRecordings(t *testing.T) {
	var paths []string
	for _, folder := range []string{"a", "b"} {
		dir := filepath.Join(t.TempDir(), folder)
		require.NoError(t, os.Mkdir(dir, 0o755))
		paths = append(paths, writeRecording(t, filepath.Join(dir, "run.psr"), folder))
	}
	state, err := OpenRecordings(t.Context(), "v", paths)
	require.NoError(t, err)
	for i, j := range state.Jobs() {
		if want := paths[i] + " 10.0.0.1:9000"; j.Name != want {
			t.Errorf("job %d is called %q, want %q", i, j.Name, want)
		}
	}
	if state, err = OpenRecordings(t.Context(), "v", paths[:1]); err != nil || state.Jobs()[0].Name != "run 10.0.0.1:9000" {
		t.Errorf("one alone: %v", err)
	}
}

// What is asked of a recorded job is answered from the recording, what is asked of a
// live one by the agent, with the same words.
func TestShowBesideLive(t *testing.T) {
	var asked []string
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/jobs", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"jobs":[{"job":"10.0.0.9:9000","state":"running"}]}`))
	})
	mux.HandleFunc("/api/v1/", func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+"?"+r.URL.RawQuery)
		w.Write([]byte(`{"job":"10.0.0.9:9000","host":"there"}`))
	})
	live := httptest.NewServer(mux)
	defer live.Close()
	path := writeRecording(t, filepath.Join(t.TempDir(), "run.psr"), "here")
	state := require.Value(OpenRecordings(t.Context(), "v", []string{path}))(t)
	b := &BesideLive{Recorded: state, Ask: func(path string, query url.Values, v any) error {
		return client.Get(t.Context(), live.URL, path, query, v)
	}}
	h := page.Handler(b, page.Options{History: b.History})
	get := func(path string) (code int, body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	if code, body := get("/api/v1/jobs"); code != 200 || !strings.Contains(body, `"10.0.0.9:9000"`) || !strings.Contains(body, `"run 10.0.0.1:9000"`) {
		t.Errorf("jobs: %d %s", code, body)
	}
	for _, name := range []string{"heatmap", "traffic", "keys", "servers", "history"} {
		asked = nil
		if code, body := get("/api/v1/" + name + "?job=run+10.0.0.1:9000"); code != 200 || len(asked) > 0 || !strings.Contains(body, "run 10.0.0.1:9000") {
			t.Errorf("%s of the recording: %d, asked %q: %s", name, code, asked, body)
		}
		if code, body := get("/api/v1/" + name + "?job=10.0.0.9:9000"); code != 200 || len(asked) != 1 || !strings.HasPrefix(asked[0], "/api/v1/"+name+"?") {
			t.Errorf("%s of the live job: %d, asked %q: %s", name, code, asked, body)
		}
	}
	asked = nil
	get("/api/v1/heatmap?job=10.0.0.9:9000&blocks=7&first=3&last=9&from=1000&to=1010.5&measure=pulls&by=time&rows=5&workers=a,b")
	want := "/api/v1/heatmap?blocks=7&by=time&first=3&from=1000.000000&job=10.0.0.9%3A9000&last=9&measure=pulls&rows=5&to=1010.500000&workers=a%2Cb"
	if len(asked) != 1 || asked[0] != want {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if code, body := get("/api/v1/heatmap?job=other"); code != 404 {
		t.Errorf("a job that is neither: %d %s", code, body)
	}
	if _, body := get("/api/v1/agent"); !strings.Contains(body, "there, beside recordings of here") {
		t.Errorf("the agent: %s", body)
	}
	live.Close()
	if code, body := get("/api/v1/jobs"); code != 200 || !strings.Contains(body, `"run 10.0.0.1:9000"`) {
		t.Errorf("jobs while nobody answers: %d %s", code, body)
	}
	if _, body := get("/api/v1/agent"); !strings.Contains(body, "no response") {
		t.Errorf("the agent while nobody answers: %s", body)
	}
}

// A recording that is opened through the page of running psidecar show is a job there;
// another site's page cannot have one opened.
func TestShowOpens(t *testing.T) {
	file := require.Value(os.ReadFile(writeRecording(t, filepath.Join(t.TempDir(), "run.psr"), "here")))(t)
	var p cli.Ports
	defer p.Close()
	front := require.Value(page.OpenServer(p.Listener(t.Context()), "--http", "127.0.0.1:0"))(t)
	address := front.Listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ServeRecordings(ctx, front, "v", nil, nil) }()
	post := func(origin string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/api/v1/recordings?name=run.psr", bytes.NewReader(file))
		require.NoError(t, err)
		r.Header.Set("Origin", origin)
		response := require.Value(http.DefaultClient.Do(r))(t)
		defer response.Body.Close()
		body := require.Value(io.ReadAll(response.Body))(t)
		return response.StatusCode, string(body)
	}
	if code, body := post("https://attacker.example"); code != http.StatusForbidden {
		t.Errorf("for another site: %d %s", code, body)
	}
	if code, body := post("http://" + address); code != http.StatusOK || !strings.Contains(body, "run 10.0.0.1:9000") {
		t.Errorf("opened: %d %s", code, body)
	}
	var jobs page.Jobs
	if err := client.Get(ctx, "http://"+address, "/api/v1/jobs", nil, &jobs); err != nil || len(jobs.Jobs) != 1 {
		t.Errorf("%d jobs, %v", len(jobs.Jobs), err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
