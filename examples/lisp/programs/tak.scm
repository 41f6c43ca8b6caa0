; Gabriel's tak and takl: calls and small integers; the same with lists for numbers.
(define (tak x y z)
  (if (not (< y x)) z
      (tak (tak (- x 1) y z) (tak (- y 1) z x) (tak (- z 1) x y))))
(define (listn n) (if (= n 0) '() (cons n (listn (- n 1)))))
(define (shorter? x y) (and (not (null? y)) (or (null? x) (shorter? (cdr x) (cdr y)))))
(define (mas x y z)
  (if (not (shorter? y x)) z
      (mas (mas (cdr x) y z) (mas (cdr y) z x) (mas (cdr z) x y))))
(define size (if (< 0 small) '(12 8 4) '(18 12 6)))
(write (tak (car size) (cadr size) (caddr size))) (newline)
(write (length (mas (listn (car size)) (listn (cadr size)) (listn (caddr size))))) (newline)
