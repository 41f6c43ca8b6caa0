; All ways to place queens on a board so that none attacks another.
(define (queens n)
  (define (safe? row distance placed)
    (or (null? placed)
        (and (not (= (car placed) (+ row distance))) (not (= (car placed) (- row distance))) (not (= (car placed) row))
             (safe? row (+ distance 1) (cdr placed)))))
  (define (place k placed)
    (if (= k 0) 1
        (let loop ((row 1) (found 0))
          (if (> row n) found
              (loop (+ row 1) (if (safe? row 1 placed) (+ found (place (- k 1) (cons row placed))) found))))))
  (place n '()))
(write (map queens (iota (if (< 0 small) 6 9)))) (newline)
