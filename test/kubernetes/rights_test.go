package kubernetes

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// attempt is something that a service account tries.
type attempt struct {
	what    string
	allowed bool
	do      func(context.Context, *kubernetes.Clientset) error
}

// rights tries with the accounts' own tokens what they need, and what they must
// not do.
func (c *cluster) rights(namespace string) {
	node := metav1.ListOptions{FieldSelector: "spec.nodeName=node-1"}
	secrets := func(ctx context.Context, k *kubernetes.Clientset) error {
		_, err := k.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		return err
	}
	c.tries(namespace, "psidecar-agent", []attempt{
		{"list the node's pods", true, func(ctx context.Context, k *kubernetes.Clientset) error {
			_, err := k.CoreV1().Pods("").List(ctx, node)
			return err
		}},
		{"watch the node's pods", true, func(ctx context.Context, k *kubernetes.Clientset) error {
			w, err := k.CoreV1().Pods("").Watch(ctx, node)
			if err == nil {
				w.Stop()
			}
			return err
		}},
		{"list its node", true, func(ctx context.Context, k *kubernetes.Clientset) error {
			_, err := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=node-1"})
			return err
		}},
		{"watch its node", true, func(ctx context.Context, k *kubernetes.Clientset) error {
			w, err := k.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=node-1"})
			if err == nil {
				w.Stop()
			}
			return err
		}},
		{"list namespaces", true, func(ctx context.Context, k *kubernetes.Clientset) error {
			_, err := k.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			return err
		}},
		{"list secrets", false, secrets},
		{"delete a pod", false, func(ctx context.Context, k *kubernetes.Clientset) error {
			return k.CoreV1().Pods(namespace).Delete(ctx, "any", metav1.DeleteOptions{})
		}},
		{"exec into a pod", false, func(ctx context.Context, k *kubernetes.Clientset) error {
			return k.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name("any").SubResource("exec").Param("command", "true").Do(ctx).Error()
		}},
		{"write a ConfigMap", false, func(ctx context.Context, k *kubernetes.Clientset) error { return writeMap(ctx, k, namespace) }},
		{"change its node", false, func(ctx context.Context, k *kubernetes.Clientset) error {
			_, err := k.CoreV1().Nodes().Patch(ctx, "node-1", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			return err
		}},
	})
	c.tries(namespace, "psidecar-planner", []attempt{
		{"write a ConfigMap", false, func(ctx context.Context, k *kubernetes.Clientset) error { return writeMap(ctx, k, namespace) }},
		{"list pods", false, func(ctx context.Context, k *kubernetes.Clientset) error {
			_, err := k.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"list secrets", false, secrets},
	})
}

func (c *cluster) tries(namespace, account string, all []attempt) {
	_, client := c.as(namespace, account)
	for _, a := range all {
		c.t.Run(account+": "+a.what, func(t *testing.T) {
			err := a.do(t.Context(), client)
			if a.allowed && err != nil {
				t.Errorf("it needs this: %v", err)
			}
			if !a.allowed && !apierrors.IsForbidden(err) {
				t.Errorf("it must not: %v", err)
			}
		})
	}
}

func writeMap(ctx context.Context, k *kubernetes.Clientset, namespace string) error {
	_, err := k.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "tried"}}, metav1.CreateOptions{})
	return err
}
