package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// maxEvents bounds the events written for one pod, each with a different text.
const maxEvents = 16

// event is Event of core/v1 with the fields that are written here. The package that has all of
// Kubernetes' types would be most of what this one is linked with.
type event struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	InvolvedObject      reference   `json:"involvedObject"`
	Type                string      `json:"type"`
	Reason              string      `json:"reason"`
	Message             string      `json:"message"`
	Count               int32       `json:"count"`
	FirstTimestamp      metav1.Time `json:"firstTimestamp"`
	LastTimestamp       metav1.Time `json:"lastTimestamp"`
	Source              source      `json:"source"`
	ReportingController string      `json:"reportingComponent"`
	ReportingInstance   string      `json:"reportingInstance"`
}

// reference is ObjectReference of core/v1.
type reference struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
}

// source is EventSource of core/v1.
type source struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

// newEventClient returns a client for core/v1 that decodes nothing but errors.
func newEventClient(config *rest.Config, client *http.Client) (*rest.RESTClient, error) {
	v1 := schema.GroupVersion{Version: "v1"}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, v1)
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion, c.NegotiatedSerializer = "/api", &v1, serializer.NewCodecFactory(scheme).WithoutConversion()
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientForConfigAndClient(c, client)
}

// writeEvents writes an event for each of a pod's invalid annotations. The event's name is a
// hash of the pod and the text, so that a repeated attempt, also by a restarted agent, meets
// AlreadyExists instead of writing a second one.
func (p *Pods) writeEvents(ctx context.Context, k known) error {
	for _, text := range k.said.Wrong[:min(len(k.said.Wrong), maxEvents)] {
		sum := fnv.New64a()
		sum.Write([]byte(k.UID + "\x00" + text))
		now := metav1.Now()
		body, err := json.Marshal(event{
			TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%.230s.%016x", k.Name, sum.Sum64()), Namespace: k.Namespace},
			InvolvedObject: reference{APIVersion: "v1", Kind: "Pod", Namespace: k.Namespace, Name: k.Name, UID: k.uid},
			Type:           "Warning", Reason: "PsidecarAnnotation", Message: text, Count: 1,
			FirstTimestamp: now, LastTimestamp: now,
			Source: source{Component: "psidecar-agent", Host: k.Node}, ReportingController: "psidecar.io/agent", ReportingInstance: k.Node,
		})
		if err != nil {
			return fmt.Errorf("an event for pod %s/%s: %w", k.Namespace, k.Name, err)
		}
		asking, cancel := context.WithTimeout(ctx, askWithin)
		err = p.events.Post().Namespace(k.Namespace).Resource("events").Body(body).Do(asking).Error()
		cancel()
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err): // the namespace may be on its way out
			slog.Debug("cannot write an event for a pod", "namespace", k.Namespace, "pod", k.Name, "error", err)
		default:
			return fmt.Errorf("writing an event for pod %s/%s: %w", k.Namespace, k.Name, err)
		}
	}
	return nil
}
