package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/test/require"
)

// owners is an API server that has objects with owners, and takes events.
type owners struct {
	t *testing.T

	mu     sync.Mutex
	above  map[string][2]string // by path: the object's UID, and its controller as kind:name:uid, empty: none
	failed map[string]int       // how often a path is answered by an error first
	asked  []string
	events []corev1.Event
}

func (o *owners) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(v)
	}
	status := func(code int, why metav1.StatusReason) {
		answer(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: why})
	}
	if r.Method == http.MethodPost {
		var e corev1.Event
		read := json.NewDecoder(r.Body)
		read.DisallowUnknownFields()
		if err := read.Decode(&e); err != nil {
			o.t.Error(err)
		}
		if slices.ContainsFunc(o.events, func(old corev1.Event) bool { return old.Name == e.Name }) {
			status(http.StatusConflict, metav1.StatusReasonAlreadyExists)
			return
		}
		o.events = append(o.events, e)
		answer(http.StatusCreated, e)
		return
	}
	o.asked = append(o.asked, r.URL.Path)
	if o.failed[r.URL.Path] > 0 {
		o.failed[r.URL.Path]--
		status(http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	object, ok := o.above[r.URL.Path]
	switch {
	case strings.Contains(r.URL.Path, "secret"):
		status(http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	case !ok:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	m := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Name: "x", UID: types.UID(object[0])}}
	if object[1] != "" {
		m.OwnerReferences = []metav1.OwnerReference{*controller(object[1])}
	}
	answer(http.StatusOK, m)
}

// controller is a reference to apiVersion:kind:name:uid.
func controller(text string) *metav1.OwnerReference {
	f := strings.Split(text, ":")
	yes := true
	return &metav1.OwnerReference{APIVersion: f[0], Kind: f[1], Name: f[2], UID: types.UID(f[3]), Controller: &yes}
}

// served returns the pods of a node of that API server, with a client of its own.
func (o *owners) served() *Pods {
	server := httptest.NewServer(o)
	transport := &http.Transport{}
	o.t.Cleanup(func() { server.Close(); transport.CloseIdleConnections() })
	p, err := NewPods(&rest.Config{Host: server.URL, Transport: transport, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, "node-1", "", usual)
	require.NoError(o.t, err)
	return p
}

func TestTopOwner(t *testing.T) {
	o := &owners{t: t, above: map[string][2]string{
		"/apis/apps/v1/namespaces/ads/replicasets/web-1":          {"r", "apps/v1:Deployment:web:d"},
		"/apis/apps/v1/namespaces/ads/deployments/web":            {"d", ""},
		"/apis/batch/v1/namespaces/ads/jobs/nightly-123":          {"j", "batch/v1:CronJob:nightly:c"},
		"/apis/batch/v1/namespaces/ads/cronjobs/nightly":          {"c", ""},
		"/apis/kubeflow.org/v1/namespaces/ads/pytorchjobs/train":  {"p", ""},
		"/apis/apps/v1/namespaces/ads/statefulsets/hidden-worker": {"s", "own.io/v1:Secret:hidden:x"},
		"/apis/apps/v1/namespaces/ads/statefulsets/another":       {"new", "own.io/v1:Train:other:x"},
		"/apis/own.io/v1/namespaces/ads/trains/loop":              {"l", "own.io/v1:Train:loop:l"},
	}, failed: map[string]int{}}
	p := o.served()
	for ref, want := range map[string]string{
		"apps/v1:ReplicaSet:web-1:r":           "web",
		"batch/v1:Job:nightly-123:j":           "nightly",
		"kubeflow.org/v1:PyTorchJob:train:p":   "train",
		"apps/v1:StatefulSet:hidden-worker:s":  "hidden",  // its owner may not be read
		"apps/v1:StatefulSet:another:old":      "another", // one of that name that came later
		"kubeflow.org/v1:MPIJob:gone:g":        "gone",
		"own.io/v1:Train:loop:l":               "loop",
		"a/b/c:Odd:odd:o":                      "odd",
		"batch/v1:Job:nightly-123:another-job": "nightly-123",
	} {
		got, err := p.top(t.Context(), "ads", *controller(ref))
		if err != nil || got != want {
			t.Errorf("%s is of %q, %v, want %q", ref, got, err, want)
		}
	}
}

// A pod's owner is asked for until somebody answers, and its events are written once
// for each thing that is wrong, also by the agent after this one.
func TestSettleAsksForOwnersUntilAnswered(t *testing.T) {
	const path = "/apis/batch/v1/namespaces/ads/jobs/train"
	o := &owners{t: t, above: map[string][2]string{path: {"j", ""}}, failed: map[string]int{path: 2}}
	mine := pod("a", "ads", "train-0", nil)
	mine.OwnerReferences = []metav1.OwnerReference{*controller("batch/v1:Job:train:j")}
	mine.Annotations = map[string]string{"psidecar.io/threshold": "0.9", "psidecar.io/codec": "zip", "psidecar.io/job": "ctr", "else": "x"}
	for range 2 {
		p := o.served()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		queue, ended := p.begin(), make(chan struct{})
		go func() { p.work(ctx, queue); close(ended) }()
		p.pod(mine)
		require.Await(t, "the pod's owner is known", func() error {
			said, ok := p.Said("a")
			o.mu.Lock()
			defer o.mu.Unlock()
			if events := len(o.events); !ok || said.Owner != "train" || events != 2 {
				return fmt.Errorf("it is known of the pod: %+v, %d events", said, events)
			}
			return nil
		})
		p.pod(mine) // reported again, as informers do
		if said, _ := p.Said("a"); said.Namespace != "ads" || said.Owner != "train" || said.Settings[policy.Job] != "ctr" || said.Policy != (policy.Policy{}) || len(said.Wrong) != 2 {
			t.Errorf("the pod says %+v", said)
		}
		cancel()
		<-ended
		p.noPod(mine)
		if _, ok := p.Said("a"); ok {
			t.Error("a pod that is gone says something")
		}
	}
	for _, e := range o.events {
		if e.Namespace != "ads" || e.Type != "Warning" || e.InvolvedObject.Name != "train-0" || e.InvolvedObject.UID != "a" || e.Source.Host != "node-1" || e.ReportingInstance != "node-1" || e.FirstTimestamp.IsZero() || !strings.Contains(e.Message, "is ignored") {
			t.Errorf("an event: %+v", e)
		}
	}
	if len(o.events) != 2 {
		t.Errorf("%d events", len(o.events))
	}
}

// Where annotations may say so, a pod is watched or not whatever the selector says.
func TestObserveComesBeforeTheSelector(t *testing.T) {
	may := policy.Allowed{policy.Observe: true}
	for _, c := range []struct {
		selector string
		allowed  policy.Allowed
		wish     string
		want     bool
	}{
		{"", may, "false", false}, {"", may, "", true}, {"", usual, "false", true},
		{"a=b", may, "true", true}, {"a=b", may, "", false}, {"a=b", usual, "true", false},
	} {
		p := require.Value(NewPods(&rest.Config{Host: "http://127.0.0.1:1"}, "node-1", c.selector, c.allowed))(t)
		o := pod("a", "ads", "x", nil)
		if c.wish != "" {
			o.Annotations = map[string]string{"psidecar.io/observe": c.wish}
		}
		p.pod(o)
		if got := p.Selected("a"); got != c.want {
			t.Errorf("%+v: selected %v", c, got)
		}
	}
}
